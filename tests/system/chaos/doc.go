// Package chaos holds tests in which processes are killed at random moments.
package chaos
