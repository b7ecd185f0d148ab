// Package chaos has tests in which processes are killed at random moments.
package chaos
