//go:build !amd64

package ticks

import "time"

var began = time.Now()

// Now returns the time since the program began, in nanoseconds.
func Now() uint64 { return uint64(time.Since(began)) }
