//go:build linux

package interop

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/captures"
)

// lost reports whether a ping-pong over an unreliable service hangs because a message was lost
// beyond SoftRNIC's link, as an emulated machine may lose one. Every packet that SoftRNIC had to
// send is in the link's capture, and a packet that it waits for is missing. The client sends first.
func (p pingpong) lost(ctx context.Context, t *testing.T, client bool) bool {
	t.Helper()
	if ctx.Err() != context.DeadlineExceeded || p.service != "uc" && p.service != "ud" {
		return false
	}
	data, err := os.ReadFile(p.capture(t))
	if err != nil {
		t.Fatal(err)
	}
	in, out := messagesOf(t, data)
	owed := in // by SoftRNIC
	if client {
		owed++
	}
	t.Logf("%d whole messages arrived, and SoftRNIC sent %d of %d", in, out, owed)
	return out >= owed
}

// messagesOf counts the messages over unreliable services of which a capture has all packets, in
// order.
func messagesOf(t *testing.T, pcapng []byte) (in, out int) {
	t.Helper()
	type stream struct {
		messages int
		whole    bool   // the open message, so far
		psn      uint32 // of the next packet
	}
	var came, went stream
	for n, frame := range captures.Frames(t, bytes.NewReader(pcapng)) {
		_, payload, ok := roce(frame)
		if !ok {
			continue
		}
		var p wire.Packet
		if err := p.Parse(payload); err != nil {
			t.Fatalf("packet %d: %v", n, err)
		}
		s, info := &came, p.Opcode.Info()
		if bytes.Equal(frame[6:12], softrnicMAC) {
			s = &went
		}
		s.whole = info.First() || s.whole && p.PSN == s.psn
		s.psn = wire.PSNAdd(p.PSN, 1)
		if info.Last() && s.whole {
			s.messages++
		}
	}
	return came.messages, went.messages
}
