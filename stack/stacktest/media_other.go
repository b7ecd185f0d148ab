//go:build !linux

package stacktest

// Shared memory, hubs, TAP interfaces in a bridge of the test's and packet sockets are Linux's.
var platform []Medium
