//go:build linux

// Package interop tests against the Linux kernel's RDMA drivers, in machines that it boots itself.
package interop

import (
	"testing"

	"github.com/softrnic/softrnic/tests/interop/peer"
)

func TestMain(m *testing.M) { peer.Main(m) }
