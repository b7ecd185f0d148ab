//go:build linux

// Package interop tests against the Linux kernel's RDMA drivers, in machines that it boots itself.
package interop

import (
	"os"
	"testing"

	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// TestMain boots the peers in about the order in which tests need them.
func TestMain(m *testing.M) {
	code := peer.Main(m,
		peer.Config{ID: 2}, peer.Config{ID: 52}, peer.Config{ID: 3}, peer.Config{ID: 2, MTU: 4200}, peer.Config{ID: 4},
		peer.Config{ID: 3, MTU: 4200},
		peer.Config{ID: 44, Stream: true}, peer.Config{ID: 94, Stream: true})
	libraries.Remove()
	os.Exit(code)
}
