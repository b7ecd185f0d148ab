package fabric_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// frameOf returns a frame of RoCEv2 from a host to another, with n bytes after the BTH.
func frameOf(from, to *fabric.Host, op wire.Opcode, v6 bool, dscp uint8, n int) []byte {
	ip := 20
	if v6 {
		ip = 40
	}
	b := make([]byte, 14+ip+8+wire.BTHLen+n)
	copy(b, to.MAC())
	copy(b[6:], from.MAC())
	if h := b[14:]; v6 {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		h[0], h[1], h[6], h[7] = 0x60|dscp>>2, dscp<<6|2<<4|5, 17, 64
		binary.BigEndian.PutUint16(h[4:], uint16(len(h)-40))
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		h[0], h[1], h[8], h[9] = 0x45, dscp<<2|2, 64, 17
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)))
		checksum.PutIPv4(h[:20])
	}
	u := b[14+ip:]
	binary.BigEndian.PutUint16(u[2:], 4791)
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	u[8] = byte(op)
	for i := range n {
		u[8+wire.BTHLen+i] = byte(i)
	}
	return b
}

// TestTrim: which packets are trimmed, and what is left of them.
func TestTrim(t *testing.T) {
	for _, c := range []struct {
		name    string
		op      wire.Opcode
		v6      bool
		dscp    uint8
		size    int // of Trim
		bytes   int // after the BTH
		change  func(b []byte)
		sw      fabric.Switch
		trimmed bool
	}{
		{name: "a WRITE", op: wire.RCWriteMiddle, bytes: 1000, trimmed: true},
		{name: "a WRITE with IPv6", op: wire.RCWriteMiddle, bytes: 1000, v6: true, trimmed: true},
		{name: "a READ response", op: wire.RCReadResponseMiddle, bytes: 1000, trimmed: true},
		{name: "UD", op: wire.UDSendOnly, bytes: 1000, trimmed: true},
		{name: "more is left", op: wire.RCWriteMiddle, bytes: 1000, size: 256, trimmed: true, sw: fabric.Switch{Queue: 4000}},
		{name: "the least is left", op: wire.RCWriteMiddle, bytes: 1000, size: 74, v6: true, trimmed: true},
		{name: "in class 6", op: wire.RCWriteMiddle, bytes: 1000, dscp: 48, trimmed: true},
		{name: "just long enough", op: wire.RCWriteMiddle, bytes: 2*98 + 1 - 54, trimmed: true},
		{name: "too short", op: wire.RCWriteMiddle, bytes: 2*98 - 54, sw: fabric.Switch{Queue: 1000}},
		{name: "off", op: wire.RCWriteMiddle, bytes: 1000, size: -1},
		{name: "an acknowledgement", op: wire.RCAck, bytes: 1000},
		{name: "a CNP", op: wire.CNP, bytes: 1000},
		{name: "another port", op: wire.RCWriteMiddle, bytes: 1000, change: func(b []byte) { b[37]++ }},
		{name: "TCP", op: wire.RCWriteMiddle, bytes: 1000, change: func(b []byte) { b[23] = 6; checksum.PutIPv4(b[14:34]) }},
		{name: "no IP", op: wire.RCWriteMiddle, bytes: 1000, change: func(b []byte) { b[12] = 0x88 }},
		{name: "a lossless class", op: wire.RCWriteMiddle, bytes: 1000,
			sw: fabric.Switch{PFC: fabric.PFC{Classes: 1, Xoff: 1, Headroom: 1500, Xon: fabric.None}}},
		{name: "the shared buffer", op: wire.RCWriteMiddle, bytes: 1000, trimmed: true, sw: fabric.Switch{Buffer: 8000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sw := c.sw
			if sw.Buffer == 0 && sw.PFC.Classes == 0 && sw.Queue == 0 {
				sw.Queue = 3300
			}
			if c.size >= 0 {
				sw.Trim = fabric.Trim{DSCP: 10, Size: c.size}
			}
			f := newFabric(t, &fabric.Config{Topology: fabric.Star(9), Switch: sw})
			to, frames := f.Hosts()[0], map[int]int{}
			var got [][]byte
			to.Attach(func(all []link.Frame) {
				for _, fr := range all {
					got = append(got, bytes.Clone(fr.Data))
				}
			})
			var whole []byte
			for _, from := range f.Hosts()[1:] {
				whole = frameOf(from, to, c.op, c.v6, c.dscp, c.bytes)
				if c.change != nil {
					c.change(whole)
				}
				must(from.Write([]link.Frame{{Data: whole}, {Data: whole}}))(t)
			}
			f.Run(time.Millisecond)
			n := f.Counters()
			for _, b := range got {
				frames[len(b)]++
			}
			if sum := n.Dropped + n.Trimmed + uint64(frames[len(whole)]); sum != 16 || n.Delivered != uint64(len(got)) ||
				c.trimmed != (n.Trimmed > 0) || !c.trimmed && n.Dropped == 0 || to.Port().Peer().Counters().Trimmed != n.Trimmed {
				t.Fatalf("%+v, frames by length %v", n, frames)
			}
			if !c.trimmed {
				return
			}
			left := max(98, c.size)
			if c.size > 0 {
				left = c.size
			}
			if frames[left] != int(n.Trimmed) || n.Dropped > 0 {
				t.Fatalf("%+v, frames by length %v", n, frames)
			}
			i := slices.IndexFunc(got, func(b []byte) bool { return len(b) == left })
			b := bytes.Clone(got[i])
			if c.v6 {
				if b[14] != 0x60|10>>2 || b[15] != 10<<6&0xff|2<<4|5 {
					t.Errorf("traffic class % x", b[14:16])
				}
				copy(b[14:16], whole[14:16])
			} else {
				if b[15] != 10<<2|2 || checksum.Sum(b[14:34], 0) != 0xffff {
					t.Errorf("IP header % x", b[14:34])
				}
				b[15] = whole[15]
				checksum.PutIPv4(b[14:34])
			}
			copy(b[6:12], whole[6:]) // of another sender
			if !bytes.Equal(b, whole[:left]) {
				t.Errorf("what is left is\n% x\nof\n% x", b, whole[:left])
			}
			// What was trimmed goes first: the second of the cut packets overtakes those that wait.
			if last := got[len(got)-1]; len(last) != len(whole) {
				t.Errorf("the last frame has %d bytes", len(last))
			}
		})
	}
}

// TestTrimFull: what is trimmed is dropped if its class has no room, and is not trimmed again.
func TestTrimFull(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(2, 20, 1), Switch: fabric.Switch{Queue: 1200, Trim: fabric.Trim{DSCP: 10}}})
	to, n := f.Hosts()[0], 0
	to.Attach(func(all []link.Frame) { n += len(all) })
	for _, from := range f.Hosts()[1:] {
		for range 10 {
			must(from.Write([]link.Frame{{Data: frameOf(from, to, wire.RCWriteMiddle, false, 0, 1000)}}))(t)
		}
		must(from.Write([]link.Frame{linktest.Plain(to.MAC(), from.MAC(), 1000, "")}))(t)
	}
	f.Run(time.Millisecond)
	if c := f.Counters(); c.Dropped == 0 || c.Trimmed == 0 || c.Delivered != uint64(n) || c.Delivered+c.Dropped != c.Sent || c.Sent != 39*11 {
		t.Errorf("%+v, %d have arrived", c, n)
	}
}

// TestTrimmedIncast: with shallow queues and without PFC, each trimmed packet is repeated at once,
// and nothing waits for a timeout or a probe. So messages are complete sooner than with drops. The
// senders go back or not, and have static or gVisor as their stack.
func TestTrimmedIncast(t *testing.T) {
	type result struct {
		mean, last      time.Duration
		probes, retries uint64
		repeats         uint64
		fabric.Counters
	}
	const senders, size = 16, 128 << 10
	run := func(cfg roce.Config, trim uint8, read bool, on func(testing.TB, *fabric.Fabric, *fabric.Host, roce.Config) *node) (r result) {
		f := newFabric(t, &fabric.Config{Topology: fabric.Star(senders + 1), Seed: 1,
			Switch: fabric.Switch{Queue: 100e3, Trim: fabric.Trim{DSCP: trim}}})
		var nodes []*node
		cfg.TrimmedDSCP = trim
		for _, h := range f.Hosts() {
			nodes = append(nodes, on(t, f, h, cfg))
		}
		done := 0
		for _, n := range nodes[1:] {
			x, y := connect(n, nodes[0], verbs.MTU4096)
			op := verbs.RDMAWrite
			if read {
				x, y, op = y, x, verbs.RDMARead
			}
			x.stream(op, y, size, 2).done = func() {
				if done++; done%2 == 0 {
					r.mean += f.Now() / senders
				}
				r.last = f.Now()
			}
		}
		for range 1000 {
			if f.Run(100 * time.Microsecond); done == 2*senders {
				break
			}
		}
		if done != 2*senders {
			t.Fatalf("%d messages are complete", done)
		}
		for _, n := range nodes {
			c := must(n.dev.HWCounters())(t)
			r.probes, r.retries, r.repeats = r.probes+c["tail_probes"], r.retries+c["completer_retry_err"], r.repeats+c["selective_repeats"]
		}
		r.Counters = f.Counters()
		return r
	}
	for _, c := range []struct {
		name string
		cfg  roce.Config
		read bool
		on   func(testing.TB, *fabric.Fabric, *fabric.Host, roce.Config) *node
	}{
		{"WRITE", roce.Config{SelectiveRepeat: true}, false, onStatic},
		{"READ", roce.Config{SelectiveRepeat: true}, true, onStatic},
		{"WRITE, DCQCN", roce.Config{SelectiveRepeat: true, DCQCN: &roce.DCQCN{}}, false, onStatic},
		{"WRITE on netstack", roce.Config{SelectiveRepeat: true}, false, onNetstack},
		{"WRITE, go back", roce.Config{}, false, onStatic},
		{"READ, go back", roce.Config{}, true, onStatic},
	} {
		t.Run(c.name, func(t *testing.T) {
			drops, trims := run(c.cfg, 0, c.read, c.on), run(c.cfg, 10, c.read, c.on)
			text := fmt.Sprintf("with drops %+v, and trimmed %+v", drops, trims)
			t.Log(text)
			if drops.Dropped == 0 || drops.Trimmed > 0 || trims.Trimmed == 0 || trims.Dropped > 0 {
				t.Errorf("counters: %s", text)
			}
			if c.cfg.SelectiveRepeat && (trims.probes+trims.retries > 0 || trims.repeats == 0 || !c.read && trims.repeats != trims.Trimmed) {
				t.Errorf("repeats: %s", text)
			}
			// READs of a requester that goes back repeat what is under way, and wait for probes either way.
			if goesBack := c.read && !c.cfg.SelectiveRepeat; !goesBack && (trims.mean >= drops.mean || trims.last >= drops.last) {
				t.Errorf("times: %s", text)
			}
		})
	}
}
