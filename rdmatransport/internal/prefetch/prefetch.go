//go:build amd64 || arm64

// Package prefetch asks the processor for user memory that will be needed soon. Nothing faults:
// where there is no memory, nothing happens. On processors without it, it does nothing.
package prefetch

import "unsafe"

// Lines are of 64 bytes, and of a length that is worth the call.
const shortest = 512

// Write prefetches as many bytes as b has, ahead bytes behind its beginning, to be written.
func Write(b []byte, ahead int) {
	if len(b) >= shortest {
		write(unsafe.SliceData(b), ahead, len(b))
	}
}

// Read prefetches as many bytes as b has, ahead bytes behind its beginning, to be read.
func Read(b []byte, ahead int) {
	if len(b) >= shortest {
		read(unsafe.SliceData(b), ahead, len(b))
	}
}

// The address is computed in assembly: a Go pointer behind the end of its object may end the
// program.
//
//go:noescape
func write(p *byte, ahead, n int)

//go:noescape
func read(p *byte, ahead, n int)
