package rdmatransport_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestForgedBesideDirect checks packets that a third party forges in the name of a peer in the same
// process. Their PSNs are ahead of the peer's. The two must not switch to packets.
func TestForgedBesideDirect(t *testing.T) {
	for _, selective := range []bool{false, true} {
		t.Run(fmt.Sprint("selective repeat ", selective), func(t *testing.T) { forgeBesideDirect(t, selective) })
	}
}

func forgeBesideDirect(t *testing.T, selective bool) {
	lan := new(pipe.Switch)
	var macs []net.HardwareAddr
	wrap := func(l link.Link) link.Link {
		macs = append(macs, l.MAC())
		return l
	}
	e := &newEnds(t, setting{transport: verbs.RoCEv2, devices: 2, lan: lan, wrap: wrap,
		cfg: &rdmatransport.Config{RoCE: roce.Config{SelectiveRepeat: selective}}}, testMemory).side
	third := lan.Port()
	defer third.Close()

	to, from := e[1].QP(), e[0].QP()
	attr, _, err := to.Query()
	if err != nil {
		t.Fatal(err)
	}
	var mark wire.Mark
	if selective {
		mark = wire.MarkOf(from.Num(), to.Num(), attr.RQPSN)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	forge := func() {
		attr, _, err := to.Query()
		if err != nil {
			t.Fatal(err)
		}
		p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCWriteOnly, PKey: wire.DefaultPKey, DestQP: to.Num(), AckReq: rnd.IntN(2) == 0,
			PSN: wire.PSNAdd(attr.RQPSN, 1+rnd.Uint32N(1000)), Reserved7: mark.Newest()}}
		p.RETH = wire.RETH{Addr: e[1].mr.Addr(), RKey: e[1].mr.RKey(), Length: 64}
		p.Payload = make([]byte, 64)
		if rnd.IntN(2) == 0 {
			p.Reserved7 = mark.Again()
		}
		const headers = 14 + 20 + 8
		b := make([]byte, headers+p.Size())
		copy(b, macs[1])
		copy(b[6:], macs[0])
		ip, udp := b[14:34], b[34:headers]
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		copy(ip, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
		binary.BigEndian.PutUint16(ip[2:], uint16(len(b)-14))
		sum := uint32(0)
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
		binary.BigEndian.PutUint16(udp, 50000)
		binary.BigEndian.PutUint16(udp[2:], 4791)
		binary.BigEndian.PutUint16(udp[4:], uint16(len(b)-34))
		p.Encode(b[14:headers], b[headers:])
		if _, err := third.Write([]link.Frame{{Data: b}}); err != nil {
			t.Fatal(err)
		}
	}

	const rounds, forged = 1000, 8
	before := must(e[1].HWCounters())(t)["rcvd_pkts"]
	for i := range rounds {
		for range forged {
			forge()
		}
		// They arrive before the message, or one of them may have the next PSN.
		for deadline := time.Now().Add(10 * time.Second); must(e[1].HWCounters())(t)["rcvd_pkts"] < before+uint64(i+1)*forged; {
			if e[1].poll(t); time.Now().After(deadline) {
				t.Fatal("not all packets have arrived")
			}
		}
		e[0].mr.Buf()[100] = byte(i)
		e[0].post(t, &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e[0].mr.SGE(100, 1)},
			RemoteAddr: e[1].mr.Addr() + 100, RKey: e[1].mr.RKey()})
		e[0].take(t)
		if got := e[1].mr.Buf()[100]; got != byte(i) {
			t.Fatalf("message %d is %d", i, got)
		}
	}
	if n := e[0].direct(t); n != rounds {
		t.Errorf("%d of %d messages went without packets", n, rounds)
	}
	for i, b := range e[1].mr.Buf()[:64] {
		if b != 1 {
			t.Fatalf("byte %d is %d: a forged packet was executed", i, b)
		}
	}
	if s := to.State(); s != verbs.StateRTS {
		t.Errorf("the QP is in %v", s)
	}
}
