//go:build !linux

package trace

import (
	"errors"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

type live struct{}

func listen(*node.LinkSpec) (*live, error) {
	return nil, errors.New("--link is for Linux: capture to a file, or to standard input with tcpdump -w - | softrnic trace -")
}

func (*live) close() {}

func (*live) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	return nil, gopacket.CaptureInfo{}, 0, errors.ErrUnsupported
}
