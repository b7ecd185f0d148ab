package trace

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// storage returns a capture of a Linux kernel that used "softrnic nvme serve" or "softrnic nfs
// serve".
func storage(t testing.TB, name string) []record {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".pcapng.gz")
	if err != nil {
		t.Fatal(err)
	}
	return records(t, b)
}

// named has the messages above RDMA that a trace names.
type named struct {
	messages map[int]string // by packet
	counts   map[string]int // of commands or calls, by name
	answers  map[string]int // by the name of what they answer; "" is that of answers to nothing known
}

var (
	commandPattern = regexp.MustCompile(`(?:NVMe ([A-Z][A-Za-z ]*) CID (\d+)|RDMA_\w+ call XID (\w+): ([^,]*))`)
	answerPattern  = regexp.MustCompile(
		`(?:NVMe response CID (\d+)|RDMA_\w+ reply XID (\w+)): (\w*)(?: to ([^,]*) of packet (\d+) after [^,]*)?`)
)

// names returns the messages that a trace names. An answer must have the ID and the name of the
// command that it refers to.
func names(t *testing.T, packets []record) *named {
	t.Helper()
	n := &named{map[int]string{}, map[string]int{}, map[string]int{}}
	type command struct {
		packet   int
		id, name string
	}
	known := map[command]bool{}
	_, out := traced(t, &Command{JSON: true}, packets)
	for line := range strings.Lines(out) {
		var p struct {
			Number int
			Upper  string
		}
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatal(err)
		}
		if p.Upper == "" {
			continue
		}
		n.messages[p.Number] = p.Upper
		for _, m := range commandPattern.FindAllStringSubmatch(p.Upper, -1) {
			c := command{p.Number, m[2] + m[3], m[1] + m[4]}
			known[c] = true
			n.counts[c.name]++
		}
		for _, m := range answerPattern.FindAllStringSubmatch(p.Upper, -1) {
			n.answers[m[4]]++
			if m[4] == "" {
				continue
			}
			at, err := strconv.Atoi(m[5])
			if c := (command{at, m[1] + m[2], m[4]}); err != nil || at >= p.Number || !known[c] {
				t.Errorf("packet %d answers something else: %s", p.Number, p.Upper)
			}
		}
	}
	return n
}

// TestNVMeNames: commands of a capture have the names, parameters and CIDs that Wireshark shows,
// and each response is matched with its command. Wireshark 4.0 names no SENDs of several packets,
// such as those of packets 156, 240 and 457.
func TestNVMeNames(t *testing.T) {
	n := names(t, storage(t, "nvme"))
	want := map[string]int{"Property Get": 12, "Identify": 10, "Property Set": 6, "Read": 5, "Get Log Page": 5, "Connect": 3, "Write": 2,
		"Set Features": 2, "Flush": 1, "Dataset Management": 1, "Asynchronous Event Request": 1}
	if !maps.Equal(n.counts, want) {
		t.Errorf("commands: %v", n.counts)
	}
	delete(want, "Asynchronous Event Request") // no event happened
	want[""] = 1                               // packet 81 repeats a response
	if !maps.Equal(n.answers, want) {
		t.Errorf("responses to: %v", n.answers)
	}
	for number, want := range map[int]string{
		12: "NVMe queue 0 of 32 commands",
		15: "NVMe Connect CID 0, queue 0 of 32 entries, 1024 bytes at 0xff412764489ccc00, key 0x349 to be invalidated",
		19: "NVMe response CID 0: success to Connect of packet 15 after 4.479ms",
		25: "NVMe Property Set CID 4096, CC 0x460000",
		81: "NVMe response CID 16384: success",
		67: "NVMe Get Log Page CID 4, page 0x70, 1024 bytes from 0 on, 1024 bytes at 0xff4127644a304260, key 0x34c to be invalidated",
		156: `NVMe Connect CID 0, queue 1 of 128 entries, controller 0x2 of "nqn.2014-08.org.example:softrnic", ` +
			`host "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000", 1024 bytes in the capsule`,
		148: "NVMe Set Features CID 9, feature 0x07, value 0x0",
		182: "NVMe Identify CID 4103, CNS 0x03, NSID 1, 4096 bytes at 0xff41276448962000, key 0x2400 to be invalidated",
		218: "NVMe Read CID 50, NSID 1, SLBA 8, 8 blocks, 4096 bytes at 0xff4127645c775000, key 0x445a to be invalidated",
		240: "NVMe Write CID 97, NSID 1, SLBA 24, 8 blocks, 4096 bytes in the capsule",
		457: "NVMe Dataset Management CID 55, NSID 1, 1 range, deallocate, 4096 bytes in the capsule",
	} {
		if n.messages[number] != want {
			t.Errorf("packet %d: %q instead of %q", number, n.messages[number], want)
		}
	}
}

// TestNFSNames: the calls of a capture have the procedures and XIDs that Wireshark shows, and each
// reply is matched with its call.
func TestNFSNames(t *testing.T) {
	n := names(t, storage(t, "nfs"))
	want := map[string]int{"NFSACL NULL": 1}
	for procedure, count := range map[string]int{"NULL": 1, "GETATTR": 3, "LOOKUP": 6, "ACCESS": 8, "READLINK": 1, "READ": 1, "WRITE": 1,
		"CREATE": 1, "MKDIR": 1, "SYMLINK": 1, "REMOVE": 2, "RMDIR": 1, "RENAME": 1, "READDIRPLUS": 1, "FSINFO": 2, "PATHCONF": 1} {
		want["NFSv3 "+procedure] = count
	}
	if !maps.Equal(n.counts, want) || !maps.Equal(n.answers, want) {
		t.Errorf("calls: %v\nreplies to: %v", n.counts, n.answers)
	}
	for number, want := range map[int]string{
		38:  "RPC-over-RDMA, sends 4096 and receives 4096 bytes, accepts invalidation",
		41:  "RDMA_MSG call XID 0x240b503e: NFSv3 NULL, 128 credits",
		55:  "RDMA_MSG reply XID 0x270b503e: PROG_UNAVAIL to NFSACL NULL of packet 53 after 104µs, 64 credits",
		79:  "RDMA_MSG reply XID 0x2d0b503e: NFS3ERR_NOENT to NFSv3 LOOKUP of packet 77 after 210µs, 64 credits",
		85:  "RDMA_MSG call XID 0x2f0b503e: NFSv3 WRITE, 128 credits, read list of 131072 bytes in 1 segment",
		246: "RDMA_MSG call XID 0x370b503e: NFSv3 READDIRPLUS, 128 credits, reply chunk of 65664 bytes in 3 segments",
		392: "RDMA_MSG reply XID 0x3b0b503e: NFS3_OK to NFSv3 READ of packet 262 after 1.381ms, 64 credits, " +
			"write chunk of 131072 bytes in 1 segment",
	} {
		if n.messages[number] != want {
			t.Errorf("packet %d: %q instead of %q", number, n.messages[number], want)
		}
	}
}

// TestNamesWithoutSetUp: a capture that begins within a connection has its protocol recognized.
func TestNamesWithoutSetUp(t *testing.T) {
	n := names(t, storage(t, "nfs")[100:])
	if got := n.counts["NFSv3 LOOKUP"]; got != 5 {
		t.Errorf("NFS: %d LOOKUPs: %v", got, n.counts)
	}
	n = names(t, storage(t, "nvme")[153:]) // the Connect of an I/O queue
	if got := n.counts["Read"]; got != 5 {
		t.Errorf("NVMe: %d READs: %v", got, n.counts)
	}
}

// TestNamesDrawn: a ladder has the names.
func TestNamesDrawn(t *testing.T) {
	for name, want := range map[string]string{"nvme": "NVMe Write CID 53<", "nfs": ": NFSv3 WRITE<"} {
		file := filepath.Join(t.TempDir(), "ladder.svg")
		traced(t, &Command{Stats: true, Ladder: file}, storage(t, name))
		if b, err := os.ReadFile(file); err != nil || !bytes.Contains(b, []byte(want)) {
			t.Errorf("%s: %v, no %q", name, err, want)
		}
	}
}

// TestIWARPNames: the commands of a queue over iWARP have names, in both directions.
func TestIWARPNames(t *testing.T) {
	const nqn = "nqn.2014-08.org.example:disk"
	lan := new(pipe.Switch)
	var file bytes.Buffer
	recorded, err := capture.New(lan.Port(), &file)
	if err != nil {
		t.Fatal(err)
	}
	open := func(l link.Link, addr string) *verbs.Device {
		n, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
		if err != nil {
			t.Fatal(err)
		}
		dev, err := rdmatransport.Open(n, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = dev.Close()
			_ = n.Close()
		})
		return dev
	}
	near, far := open(lan.Port(), "10.0.0.2/24"), open(recorded, "10.0.0.1/24")
	to, err := target.Listen(far, "10.0.0.1:4420", &target.Config{NQN: nqn, Transports: []verbs.Transport{verbs.IWARP},
		Namespaces: []target.Namespace{{Backend: target.NewMemory(1 << 20)}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	c, err := host.Dial(ctx, near, "10.0.0.1:4420", &host.Config{NQN: nqn, Transport: verbs.IWARP, IOQueues: 1})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := c.Namespace(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16<<10)
	for i := range 3 {
		if _, err := ns.WriteAt(b, int64(i*len(b))); err != nil {
			t.Fatal(err)
		}
		if _, err := ns.ReadAt(b[:4096], int64(i*len(b))); err != nil {
			t.Fatal(err)
		}
	}
	if err := ns.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := ns.Discard(ctx, 0, 64<<10); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Close(), to.Close(), recorded.Flush()); err != nil {
		t.Fatal(err)
	}
	got := names(t, records(t, file.Bytes()))
	for name, count := range map[string]int{"Connect": 2, "Write": 3, "Read": 3, "Flush": 1, "Dataset Management": 1} {
		if got.counts[name] != count || got.answers[name] != count {
			t.Errorf("%d %s with %d responses instead of %d", got.counts[name], name, got.answers[name], count)
		}
	}
	if got.answers[""] != 0 {
		t.Errorf("%d responses to nothing", got.answers[""])
	}
}

// rpcCallTo returns a call in an RPC-over-RDMA message. Its XID is that of the header.
func rpcCallTo(h rpcrdma.Header, program, version, procedure uint32) []byte {
	h.Version, h.Credits = rpcrdma.Version, 32
	b := h.Append(nil)
	for _, word := range []uint32{h.XID, rpcCall, 2, program, version, procedure, 0, 0, 0, 0} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

// rpcReplyOf returns a reply in an RPC-over-RDMA message with words from its type on.
func rpcReplyOf(xid uint32, words ...uint32) []byte {
	h := rpcrdma.Header{XID: xid, Version: rpcrdma.Version, Credits: 32, Type: rpcrdma.Msg}
	b := binary.BigEndian.AppendUint32(h.Append(nil), xid)
	for _, word := range words {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

func (c *rc) message(side int, after time.Duration, psn uint32, b []byte) {
	c.part(side, after, psn, wire.RCSendOnly, b)
}

func (c *rc) part(side int, after time.Duration, psn uint32, op wire.Opcode, b []byte) {
	c.send(side, after, &wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn, AckReq: true}, Payload: b})
}

// TestNamesOfAnswers: an answer is matched with its command or call, or with nothing.
func TestNamesOfAnswers(t *testing.T) {
	const us = time.Microsecond
	msg := rpcrdma.Header{XID: 7, Type: rpcrdma.Msg}
	getattr := rpcCallTo(msg, programNFS, 3, 1)
	accepted := []uint32{rpcReply, 0, 0, 0, 0}
	ok := rpcReplyOf(7, append(accepted, 0)...)
	connect := nvme.Command{Opcode: nvme.Fabrics, Flags: nvme.FlagSGL, CID: 7, NSID: uint32(nvme.Connect)}
	connect.CDW11 = 31 // of the submission queue's size
	capsule := append(connect.Append(nil), make([]byte, nvme.ConnectDataLen)...)
	response := (&nvme.Completion{CID: 7}).Append(nil)
	chunk := []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: 1, Length: 100}}}
	for name, test := range map[string]struct {
		packets func(c *rc)
		packet  int
		want    string
	}{
		"equal QPs": {func(c *rc) {
			c.send(0, 0, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: 5, DestQP: 0x33}, Payload: getattr})
			c.send(1, us, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PSN: 5, DestQP: 0x33},
				AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: 1}})
			c.send(1, us, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: 90, DestQP: 0x33}, Payload: ok})
		}, 3, "reply XID 0x7: NFS3_OK to NFSv3 GETATTR of packet 1 after 2µs"},
		"the direction known late": {func(c *rc) {
			c.message(0, 0, 5, getattr)
			c.message(1, us, 90, ok)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(0, us, 6, getattr)
			c.message(1, us, 91, ok)
		}, 5, "reply XID 0x7: NFS3_OK to NFSv3 GETATTR of packet 4 after 1µs"},
		"a repeated call": {func(c *rc) {
			c.message(0, 0, 5, getattr)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(0, 70*time.Millisecond, 5, getattr)
			c.message(1, us, 90, ok)
		}, 4, "reply XID 0x7: NFS3_OK to NFSv3 GETATTR of packet 1 after 70.002ms"},
		"a repeated response": {func(c *rc) {
			c.message(0, 0, 5, capsule)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(1, us, 90, response)
			c.message(0, us, 6, capsule)
			c.message(1, 70*time.Millisecond, 90, response)
		}, 5, "NVMe response CID 7: success, "},
		"a response after a repeated one": {func(c *rc) {
			c.message(0, 0, 5, capsule)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(1, us, 90, response)
			c.message(0, us, 6, capsule)
			c.message(1, 70*time.Millisecond, 90, response)
			c.message(1, us, 91, response)
		}, 6, "NVMe response CID 7: success to Connect of packet 4 after "},
		"a lost packet within a message": {func(c *rc) {
			c.part(0, 0, 5, wire.RCSendFirst, capsule[:512])
			c.part(0, us, 7, wire.RCSendLast, capsule[1024:])
			c.answer(us, 6, wire.NakPSNSeq, 0)
			c.part(0, us, 6, wire.RCSendMiddle, capsule[512:1024])
			c.part(0, us, 7, wire.RCSendLast, capsule[1024:])
			c.message(1, us, 90, response)
		}, 6, "NVMe response CID 7: success to Connect of packet 5 after 1µs"},
		"a response before its direction is known": {func(c *rc) {
			c.message(1, us, 90, response)
			c.message(0, us, 5, capsule)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(1, us, 91, response)
		}, 4, "NVMe response CID 7: success to Connect of packet 2 after 2µs"},
		"a call and a reply in chunks": {func(c *rc) {
			c.message(0, 0, 5, rpcCallTo(rpcrdma.Header{XID: 6, Type: rpcrdma.Msg}, programNFS, 3, 0))
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(0, us, 6, (&rpcrdma.Header{XID: 7, Version: rpcrdma.Version, Credits: 1, Type: rpcrdma.NoMsg, Read: chunk}).Append(nil))
			c.message(1, us, 90, (&rpcrdma.Header{XID: 7, Version: rpcrdma.Version, Credits: 1, Type: rpcrdma.NoMsg}).Append(nil))
		}, 4, "RDMA_NOMSG reply XID 0x7 to a call in a chunk of packet 3 after 1µs, 1 credit\n"},
		"an error": {func(c *rc) {
			c.message(0, 0, 5, getattr)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(1, us, 90, (&rpcrdma.Header{XID: 7, Version: rpcrdma.Version, Credits: 1, Type: rpcrdma.Error,
				Err: rpcrdma.ErrChunk}).Append(nil))
		}, 3, fmt.Sprintf("%v XID 0x7: %v to NFSv3 GETATTR of packet 1 after 2µs", rpcrdma.Error, rpcrdma.ErrChunk)},
		"a denied call": {func(c *rc) {
			c.message(0, 0, 5, getattr)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(1, us, 90, rpcReplyOf(7, rpcReply, 1, 1, 1))
		}, 3, "reply XID 0x7: denied to NFSv3 GETATTR"},
		"a status of NFS": {func(c *rc) {
			c.message(0, 0, 5, getattr)
			c.answer(us, 5, wire.AckUnlimited, 1)
			c.message(1, us, 90, rpcReplyOf(7, append(accepted, 70)...))
		}, 3, "reply XID 0x7: NFS3ERR_STALE to NFSv3 GETATTR"},
		"another protocol": {func(c *rc) {
			for i := range uint32(maxTries) {
				c.message(0, us, 5+i, make([]byte, 64))
			}
			c.message(0, us, 5+maxTries, getattr)
		}, maxTries + 1, "RC SEND Only, message 17 packet 1, 68 bytes\n"},
	} {
		c := &rc{t: t}
		test.packets(c)
		_, out := traced(t, new(Command), c.packets)
		found := false
		for line := range strings.Lines(out) {
			found = found || strings.HasPrefix(line, fmt.Sprintf("%6d ", test.packet)) && strings.Contains(line, test.want)
		}
		if !found {
			t.Errorf("%s: packet %d without %q\n%s", name, test.packet, test.want, out)
		}
	}
}

// TestOutstanding: commands without a response do not accumulate, and later ones are matched.
func TestOutstanding(t *testing.T) {
	c := &rc{t: t}
	call := func(xid uint32) []byte {
		return rpcCallTo(rpcrdma.Header{XID: xid, Type: rpcrdma.Msg}, programNFS, 3, 1)
	}
	const most = maxOutstanding + 10
	for i := range uint32(most) {
		c.message(0, time.Microsecond, i, call(i))
	}
	c.answer(time.Microsecond, most-1, wire.AckUnlimited, most)
	c.message(1, time.Microsecond, 90, rpcReplyOf(most-1, rpcReply, 0, 0, 0, 0, 0))
	a, out := traced(t, new(Command), c.packets)
	if want := fmt.Sprintf(" to NFSv3 GETATTR of packet %d after", most); !strings.Contains(out, want) {
		t.Errorf("no %q", want)
	}
	if a.outstanding == 0 || a.outstanding > maxOutstanding {
		t.Errorf("%d calls are kept", a.outstanding)
	}
}

// FuzzUpper: any messages of a connection, whole and in parts, are named in valid text, and their
// state is bounded.
func FuzzUpper(f *testing.F) {
	const header = 4 // flags, where the message is divided, and its length
	for _, name := range []string{"nvme", "nfs"} {
		var all []byte
		for _, r := range storage(f, name) {
			var g frame
			g.decode(1, r.data)
			var p wire.Packet
			if g.kind != roce || p.Parse(g.payload) != nil || p.Opcode != wire.RCSendOnly {
				continue
			}
			all = append(all, byte(len(p.Payload)&1), 16, byte(len(p.Payload)>>8), byte(len(p.Payload)))
			all = append(all, p.Payload...)
			if len(all) > 2000 {
				break
			}
		}
		f.Add(uint16(0), []byte(nil), all)
		f.Add(uint16(nvme.Port), make([]byte, 32), all)
		f.Add(uint16(portNFS), []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3}, all)
	}
	f.Fuzz(func(t *testing.T, port uint16, private, b []byte) {
		a := newAnalysis(discard{}, true)
		u, text := newUpper(port, private)
		var sides [2]prefix
		for len(b) >= header {
			side, at := int(b[0]&1), int(b[1])
			a.ev = event{number: a.ev.number + 1, repeats: int(b[0] >> 1 & 1)}
			n := min(int(binary.BigEndian.Uint16(b[2:])), len(b)-header)
			parts := [][]byte{b[header : header+n]}
			if at < n {
				parts = [][]byte{b[header : header+at], b[header+at : header+n]}
			}
			b = b[header+n:]
			for i, part := range parts {
				if m := a.collect(&sides[side], u, part, i == 0, i == len(parts)-1); m.b != nil {
					if len(m.b) > m.n || m.n != n {
						t.Fatalf("%d bytes of %d, in place of %d", len(m.b), m.n, n)
					}
					m.from = side
					a.above(u, &m)
				}
			}
			if text += a.ev.upper; !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r") {
				t.Fatalf("%q", text)
			}
			text = ""
		}
		if a.outstanding != len(u.waiting) || a.outstanding > maxOutstanding || a.prefixes != 0 {
			t.Fatalf("%d of %d commands, %d prefixes", a.outstanding, len(u.waiting), a.prefixes)
		}
		if a.endUpper(u); a.outstanding != 0 {
			t.Fatalf("%d commands at the end", a.outstanding)
		}
	})
}
