//go:build !linux

package stacktest

// Shared memory, hubs, TAP interfaces and packet sockets are for Linux only.
var platform []Medium
