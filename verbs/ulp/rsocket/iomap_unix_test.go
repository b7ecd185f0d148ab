//go:build unix && (amd64 || arm64)

package rsocket_test

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// Map of memory whose length does not fit in the protocol's field fails.
func TestMapTooLong(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 1<<32, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	ok(t, err)
	defer func() { ok(t, unix.Munmap(b)) }()
	lan := new(pipe.Switch)
	to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
	a, c, err := connect(from, to, serverAt, &rsocket.Config{Iomaps: 1})
	ok(t, err)
	defer a.Close()
	defer c.Close()
	if _, err := a.Map(b, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Map of %d bytes: %v", len(b), err)
	}
	_, err = a.Map(b[1:], 0)
	ok(t, err)
}

// A peer writes to memory that no longer exists, such as pages after the end of a truncated file.
// This ends the peer's connection, and not this process.
func TestWriteAtFaults(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		ok(t, err)
		defer func() { ok(t, unix.Munmap(memory)) }()
		a, b := pair(t, m, &rsocket.Config{Transport: transport, Iomaps: 1})
		_, err = a.Map(memory, 0)
		ok(t, err)
		_, err = a.Write([]byte{1})
		ok(t, err)
		_, err = b.Read(make([]byte, 1))
		ok(t, err)
		ok(t, unix.Mprotect(memory, unix.PROT_NONE))
		_, err = b.WriteAt([]byte{1}, 0)
		ok(t, err)
		for side, c := range map[string]*rsocket.Conn{"the side with the mapping": a, "the peer": b} {
			if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Errorf("Read on %s: %v", side, err)
			}
		}
	})
}
