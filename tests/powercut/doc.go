// Package powercut has a block device for tests of what remains after a power failure, and takes
// such failures at random moments.
package powercut
