//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// wiretap has the packets that one peer sends another, captured at the first one's bridge port.
type wiretap struct {
	link link.Link

	mu      sync.Mutex
	packets []wire.Packet
	faults  []string
}

// openWiretap starts a wiretap that also captures to a file.
func openWiretap(t *testing.T, from, to *peer.Peer, file string) *wiretap {
	t.Helper()
	w := &wiretap{}
	if err := from.Netns.Do(func() error {
		l, err := packet.Open(fmt.Sprintf("peer%d", from.ID), &packet.Config{MAC: to.MAC()})
		if err != nil {
			return err
		}
		w.link, err = capture.Create(l, file)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.link.Attach(w.take)
	return w
}

// take parses RoCEv2 packets as SoftRNIC does.
func (w *wiretap) take(frames []link.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range frames {
		headers, payload, ok := roce(frames[i].Data)
		if !ok {
			continue
		}
		var p wire.Packet
		switch err := p.Parse(payload); {
		case err != nil:
			w.faults = append(w.faults, fmt.Sprintf("%v: %x", err, payload))
		case !wire.CheckICRC(headers, payload):
			w.faults = append(w.faults, fmt.Sprintf("wrong ICRC: %x", payload))
		default:
			p.Payload = bytes.Clone(p.Payload)
			w.packets = append(w.packets, p)
		}
	}
}

// stop ends the capture when packets of at least n PSNs, or faults, have arrived. The test may then
// use both.
func (w *wiretap) stop(t *testing.T, n int) {
	t.Helper()
	arrived := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		psns := make(map[uint32]struct{})
		for i := range w.packets {
			psns[w.packets[i].PSN] = struct{}{}
		}
		return len(psns) + len(w.faults)
	}
	for end := time.Now().Add(patience); arrived() < n && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := w.link.Close(); err != nil {
		t.Error(err)
	}
	for _, f := range w.faults[:min(10, len(w.faults))] {
		t.Error(f)
	}
}

var perftestLocal = regexp.MustCompile(`local address: LID 0000 QPN 0x([0-9a-f]+) PSN 0x([0-9a-f]+)`)

// perftestAddress matches the address of a QP as perftest prints it.
func perftestAddress(t *testing.T, output string) (qpn, psn uint32) {
	t.Helper()
	m := perftestLocal.FindStringSubmatch(output)
	if m == nil {
		t.Fatalf("perftest does not print the address of its QP:\n%s", output)
	}
	var n [2]uint64
	for i := range n {
		n[i], _ = strconv.ParseUint(m[i+1], 16, 24)
	}
	return uint32(n[0]), uint32(n[1])
}

// TestPerftestPackets: SoftRNIC's parser and tshark parse the packets of ib_send_bw over each
// service.
func TestPerftestPackets(t *testing.T) {
	gate.System(t)
	peers := peer.Boot(t, peer.Config{ID: 2}, peer.Config{ID: 3})
	tracePort(t, peers[0])
	server, client := peers[0], peers[1]
	const (
		iters = 100
		qkey  = 0x11111111
	)
	for _, c := range []struct {
		service string
		size    int
		opcodes []wire.Opcode // of a message
	}{
		{"RC", 3000, []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast}},
		{"UC", 3000, []wire.Opcode{wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast}},
		{"UC", 1023, []wire.Opcode{wire.UCSendOnly}},
		{"UD", 1023, []wire.Opcode{wire.UDSendOnly}},
	} {
		t.Run(fmt.Sprintf("%s/%d", c.service, c.size), func(t *testing.T) {
			dir := t.TempDir()
			there := openWiretap(t, client, server, filepath.Join(dir, "there"))
			back := openWiretap(t, server, client, filepath.Join(dir, "back"))
			run := func(p *peer.Peer) string {
				return fmt.Sprintf("ib_send_bw -d rxe0 -F -e -c %s -s %d -n %d -x %d -m 1024 -r 256", c.service, c.size, iters,
					gidIndex(t, p, p.Addr4()))
			}
			serving, err := server.Start(run(server))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = serving.Kill() }()
			server.Run(t, untilPingpongListens)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, code, err := client.Exec(ctx, run(client)+" "+server.Addr4().String())
			if err != nil || code != 0 {
				t.Fatalf("the client ends with %d, %v\n%s", code, err, out)
			}
			if code, err := serving.Wait(ctx); err != nil || code != 0 {
				t.Errorf("the server ends with %d, %v\n%s", code, err, serving.Output())
			}
			n := len(c.opcodes)
			there.stop(t, iters*n)
			if c.service == "RC" {
				back.stop(t, 1)
			} else {
				back.stop(t, 0)
			}

			clientQPN, psn := perftestAddress(t, out)
			serverQPN, _ := perftestAddress(t, serving.Output())
			const mtu = 1024
			seen := 0
			for i := range there.packets {
				p := &there.packets[i]
				if p.PSN != (psn+uint32(seen))&0xffffff {
					if c.service == "RC" { // sent twice
						continue
					}
					t.Fatalf("packet %d has PSN %#x, want %#x", i, p.PSN, psn+uint32(seen))
				}
				at := seen % n
				length := min(mtu, c.size-at*mtu)
				if p.Opcode != c.opcodes[at] || p.DestQP != serverQPN || p.PKey != 0xffff || len(p.Payload) != length {
					t.Fatalf("packet %d is %+v, want %v to QP %#x with %d bytes", i, p.BTH, c.opcodes[at], serverQPN, length)
				}
				if c.service == "UD" && (p.DETH.QKey != qkey || p.DETH.SrcQP != clientQPN) {
					t.Fatalf("packet %d has %+v", i, p.DETH)
				}
				seen++
			}
			if seen != iters*n {
				t.Errorf("%d packets are psns, want %d", seen, iters*n)
			}
			acks := slices.ContainsFunc(back.packets, func(p wire.Packet) bool { return p.Opcode == wire.RCAck })
			if acks != (c.service == "RC") || !acks && len(back.packets) > 0 {
				t.Errorf("%d packets go back", len(back.packets))
			}
			all, err := os.Create(filepath.Join(dir, "all.pcapng"))
			if err != nil {
				t.Fatal(err)
			}
			defer all.Close()
			for _, name := range []string{"there", "back"} {
				data, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := all.Write(data); err != nil {
					t.Fatal(err)
				}
			}
			dissect(t, all.Name(), len(there.packets)+len(back.packets))
		})
	}
}
