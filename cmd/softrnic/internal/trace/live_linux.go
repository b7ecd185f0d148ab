package trace

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// live is what passes through an interface.
type live struct {
	h      *pcapgo.EthernetHandle
	closed atomic.Bool
}

// listen opens an interface. It sees all packets of it, whoever they are for.
func listen(l *node.LinkSpec) (*live, error) {
	name, err := l.Interface()
	if err != nil {
		return nil, err
	}
	h, err := pcapgo.NewEthernetHandle(name)
	if err == nil {
		err = h.SetCaptureLength(maxRecord)
	}
	if err == nil {
		err = h.SetPromiscuous(true)
	}
	if intf, ierr := net.InterfaceByName(name); err == nil && ierr == nil && intf.Flags&net.FlagLoopback != 0 {
		err = onceOnLoopback(h)
	}
	if errors.Is(err, unix.EPERM) || unix.Geteuid() != 0 && err != nil {
		return nil, fmt.Errorf("%w: listening on an interface needs root, or CAP_NET_RAW", err)
	}
	if err != nil {
		return nil, err
	}
	return &live{h: h}, nil
}

// onceOnLoopback drops one of the two copies of each packet of the loopback interface: that of its sender.
func onceOnLoopback(h *pcapgo.EthernetHandle) error {
	p, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1},
		bpf.RetConstant{Val: maxRecord},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	return h.SetBPF(p)
}

// dropped is how many packets the kernel has dropped since the last call, for want of room.
func (l *live) dropped() int {
	s, err := l.h.Stats()
	if err != nil {
		return 0
	}
	return int(s.Drops)
}

// close ends a call of next, and the capture.
func (l *live) close() {
	l.closed.Store(true)
	_ = l.h.Close() // nothing was written
}

func (l *live) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	data, info, err := l.h.ZeroCopyReadPacketData()
	if l.closed.Load() || err != nil && strings.HasSuffix(err.Error(), unix.ENETDOWN.Error()) { // or the interface is gone
		err = io.EOF
	}
	return data, info, layers.LinkTypeEthernet, err
}
