//go:build amd64 || arm64

// Package prefetch prefetches user memory that will be needed soon. Nothing faults: addresses
// without memory are ignored. On processors without prefetch instructions it does nothing.
package prefetch

import "unsafe"

// shortest is the smallest length that is worth the call. Cache lines have 64 bytes.
const shortest = 512

// Write prefetches len(b) bytes for writing, from ahead bytes after the start of b on.
func Write(b []byte, ahead int) {
	if len(b) >= shortest {
		write(unsafe.SliceData(b), ahead, len(b))
	}
}

// Read prefetches len(b) bytes for reading, from ahead bytes after the start of b on.
func Read(b []byte, ahead int) {
	if len(b) >= shortest {
		read(unsafe.SliceData(b), ahead, len(b))
	}
}

// The address is computed in assembly, because a Go pointer past the end of its object may crash
// the program.
//
//go:noescape
func write(p *byte, ahead, n int)

//go:noescape
func read(p *byte, ahead, n int)
