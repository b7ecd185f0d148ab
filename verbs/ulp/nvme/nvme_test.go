package nvme_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// structure is a structure of the wire: its encoding, its parser, and the length that the parser
// needs.
type structure struct {
	name   string
	value  any
	append func([]byte) []byte
	parse  func([]byte) (any, error)
	length int // of the encoding
	least  int // that the parser accepts
}

func of[T any](name string, v T, enc func(*T, []byte) []byte, dec func([]byte) (T, error), length, least int) structure {
	return structure{name, v, func(b []byte) []byte { return enc(&v, b) }, func(b []byte) (any, error) { return dec(b) }, length, least}
}

func structures() []structure {
	keyed := nvme.Keyed(0x0102030405060708, 0x0a0b0c, 0xdeadbeef, true)
	return []structure{
		of("command", nvme.Command{Opcode: nvme.Write, Flags: nvme.FlagSGL, CID: 0x1234, NSID: 7, CDW2: 2, CDW3: 3, Metadata: 9, SGL: keyed,
			CDW10: 10, CDW11: 11, CDW12: 12, CDW13: 13, CDW14: 14, CDW15: 15},
			(*nvme.Command).Append, nvme.ParseCommand, nvme.CommandLen, nvme.CommandLen),
		of("command with data", nvme.Command{SGL: nvme.InCapsule(8192)}, (*nvme.Command).Append, nvme.ParseCommand, nvme.CommandLen,
			nvme.CommandLen),
		of("completion", nvme.Completion{Result: 1<<63 | 5, SQHead: 6, SQID: 7, CID: 8, Status: nvme.LBAOutOfRange | nvme.DoNotRetry},
			(*nvme.Completion).Append, nvme.ParseCompletion, nvme.CompletionLen, nvme.CompletionLen),
		of("connection request", nvme.ConnRequest{QID: 1, HRQSize: 128, HSQSize: 127, CNTLID: 5}, (*nvme.ConnRequest).Append,
			nvme.ParseConnRequest, nvme.ConnRequestLen, nvme.ConnRequestLen),
		of("connection reply", nvme.ConnAccept{CRQSize: 128}, (*nvme.ConnAccept).Append, nvme.ParseConnAccept, nvme.ConnAcceptLen, 4),
		of("rejection", nvme.ConnReject{Status: nvme.RejectHSQSize}, (*nvme.ConnReject).Append, nvme.ParseConnReject, nvme.ConnRejectLen,
			nvme.ConnRejectLen),
		of("connect data", nvme.ConnectData{HostID: [16]byte{1, 15: 2}, CNTLID: nvme.DynamicController, SubsystemNQN: "nqn.a", HostNQN: "nqn.b"},
			(*nvme.ConnectData).Append, nvme.ParseConnectData, nvme.ConnectDataLen, nvme.ConnectDataLen),
		of("controller", nvme.IdentifyController{Serial: "S", Model: "a model", Firmware: "1", CMIC: 1, MDTS: 2, CNTLID: 3, Version: 4, OAES: 5,
			Attributes: 6, Type: 7, AbortLimit: 8, AsyncLimit: 9, FirmwareSlots: 10, LPA: 11, ErrorEntries: 12, KeepAliveUnits: 13,
			MaxCommands: 14, Namespaces: 15, ONCS: 16, VolatileCache: true, SGLS: 17, SubsystemNQN: "nqn.c", CommandCapsule: 18, Response: 19,
			DataOffset: 20, SGLDescriptors: 21, OFCS: 22},
			(*nvme.IdentifyController).Append, nvme.ParseIdentifyController, nvme.IdentifyLen, nvme.IdentifyLen),
		of("namespace", nvme.IdentifyNamespace{Size: 1, Capacity: 2, Used: 3, Features: 4, NMIC: 5, Deallocated: 6, Bytes: 7, Granularity: 8,
			Attributes: 9, NGUID: [16]byte{10}, EUI64: [8]byte{11}, BlockShift: 12},
			(*nvme.IdentifyNamespace).Append, nvme.ParseIdentifyNamespace, nvme.IdentifyLen, nvme.IdentifyLen),
		of("independent namespace", nvme.IndependentNamespace{Features: 1, NMIC: 2, Attributes: 3, Ready: true},
			(*nvme.IndependentNamespace).Append, nvme.ParseIndependentNamespace, nvme.IdentifyLen, nvme.IdentifyLen),
		of("descriptors", nvme.Descriptors{EUI64: [8]byte{1}, NGUID: [16]byte{2}, UUID: [16]byte{3}}, (*nvme.Descriptors).Append,
			nvme.ParseDescriptors, nvme.IdentifyLen, nvme.IdentifyLen),
		of("namespace list", []uint32{1, 2, 70000}, func(v *[]uint32, b []byte) []byte { return nvme.AppendNamespaceList(b, *v) },
			nvme.ParseNamespaceList, nvme.IdentifyLen, nvme.IdentifyLen),
		of("SMART", nvme.SMART{CriticalWarning: 1, AvailableSpare: 2, UnitsRead: 3, UnitsWritten: 4, Reads: 5, Writes: 6, PowerCycles: 7,
			PowerOn: 8 * time.Hour, UnsafeShutdowns: 9, MediaErrors: 10, ErrorLogEntries: 11},
			(*nvme.SMART).Append, nvme.ParseSMART, nvme.SMARTLen, nvme.SMARTLen),
		of("error entry", nvme.ErrorEntry{Count: 1, SQID: 2, CID: 3, Status: nvme.InvalidField, Location: 5, LBA: 6, NSID: 7},
			(*nvme.ErrorEntry).Append, nvme.ParseErrorEntry, nvme.ErrorEntryLen, nvme.ErrorEntryLen),
		of("discovery header", nvme.DiscoveryHeader{Generation: 1, Records: 2}, (*nvme.DiscoveryHeader).Append, nvme.ParseDiscoveryHeader,
			nvme.DiscoveryHeaderLen, 18),
		of("discovery entry", nvme.DiscoveryEntry{Transport: nvme.TransportRDMA, Subtype: nvme.SubsystemNVM, Requirements: 2, PortID: 3,
			CNTLID: nvme.DynamicController, AdminSQSize: 31, SubsystemNQN: "nqn.d", Addr: netip.MustParseAddrPort("[fd77::1]:4420"),
			Provider: nvme.ProviderIWARP},
			(*nvme.DiscoveryEntry).Append, nvme.ParseDiscoveryEntry, nvme.DiscoveryEntryLen, nvme.DiscoveryEntryLen),
		of("range", nvme.DSMRange{Attributes: 1, Blocks: 2, SLBA: 3}, (*nvme.DSMRange).Append, nvme.ParseDSMRange, nvme.DSMRangeLen,
			nvme.DSMRangeLen),
	}
}

// Each structure has its length, and is parsed as it was. A shorter one is an error.
func TestStructures(t *testing.T) {
	for _, s := range structures() {
		b := s.append([]byte("before"))
		b, found := bytes.CutPrefix(b, []byte("before"))
		if !found || len(b) != s.length {
			t.Errorf("%s: %d bytes, want %d", s.name, len(b), s.length)
			continue
		}
		if got, err := s.parse(b); err != nil || !reflect.DeepEqual(got, s.value) {
			t.Errorf("%s: is parsed as %+v, %v; want %+v", s.name, got, err, s.value)
		}
		if _, err := s.parse(append(b, 0, 0, 0)); err != nil {
			t.Errorf("%s followed by zeros: %v", s.name, err)
		}
		for n := range s.least {
			if _, err := s.parse(b[:n]); !errors.Is(err, syscall.EPROTO) {
				t.Errorf("%s: %d of %d bytes: %v", s.name, n, s.least, err)
				break
			}
		}
	}
}

// The offsets are those of the specifications, written down by hand.
func TestOffsets(t *testing.T) {
	sgl := nvme.Keyed(0x1122334455667788, 0x030201, 0x44332211, true)
	connect := nvme.ConnectCommand{QID: 0x0201, SQSize: 0x0403, Attributes: 5, KeepAlive: 0x06 * time.Millisecond}
	c := connect.Command()
	c.CID, c.SGL = 0x0807, sgl
	want := "7f40070801000000" + strings.Repeat("00", 16) + "8877665544332211" + "010203" + "11223344" + "4f" +
		"0000" + "0102" + "0304" + "0500" + "06000000" + strings.Repeat("00", 12)
	if got := hex.EncodeToString(c.Append(nil)); got != want {
		t.Errorf("connect:\n%s, want\n%s", got, want)
	}
	get := nvme.PropertyGetCommand(nvme.PropertyCAP)
	if b := get.Append(nil); b[0] != 0x7f || b[4] != 4 || b[40] != 1 || b[44] != 0 || b[39] != 0x40 {
		t.Errorf("property get: %x", b)
	}
	set := nvme.PropertySetCommand(nvme.PropertyCC, 0x460001)
	if b := set.Append(nil); b[4] != 0 || b[40] != 0 || b[44] != 0x14 || b[48] != 1 || b[50] != 0x46 {
		t.Errorf("property set: %x", b)
	}
	ctrl := nvme.IdentifyController{Serial: "SN", CMIC: 2, CNTLID: 0x0102, VolatileCache: true, SGLS: nvme.SGLKeyed | nvme.SGLInCapsule,
		CommandCapsule: 0x0204, SGLDescriptors: 1, SubsystemNQN: "nqn.x"}
	b := ctrl.Append(nil)
	for at, v := range map[int]byte{4: 'S', 6: ' ', 76: 2, 78: 2, 79: 1, 512: 0x66, 513: 0x44, 525: 7, 536: 4, 538: 0x10, 768: 'n', 773: 0,
		1792: 4, 1793: 2, 1803: 1} {
		if b[at] != v {
			t.Errorf("controller: byte %d is %#x, want %#x", at, b[at], v)
		}
	}
	ns := nvme.IdentifyNamespace{Size: 5, BlockShift: 9, NGUID: [16]byte{1}}
	if b := ns.Append(nil); b[0] != 5 || b[130] != 9 || b[104] != 1 {
		t.Errorf("namespace: %x", b[:140])
	}
	log := nvme.LogParams{Page: nvme.LogDiscovery, Retain: true, Length: 1 << 20, Offset: 1<<32 | 4}
	lc := log.Command()
	if lc.LogParams() != log || lc.CDW10 != 0xffff8070 || lc.CDW11 != 3 {
		t.Errorf("log page: %+v, CDW10 %#x, CDW11 %#x", lc.LogParams(), lc.CDW10, lc.CDW11)
	}
	var rw nvme.Command
	rw.SetRange(1<<40|3, 65536)
	if rw.SLBA() != 1<<40|3 || rw.Blocks() != 65536 || rw.CDW12 != 0xffff {
		t.Errorf("range: %+v", rw)
	}
}

func TestStatus(t *testing.T) {
	if err := nvme.Success.Err(); err != nil {
		t.Error(err)
	}
	s := nvme.ConnectInvalid | nvme.DoNotRetry
	if err := s.Err(); err == nil || err.Error() != "connect: invalid parameters (of an I/O command: attempted write to read only range)" {
		t.Error(err)
	}
	if s := nvme.ConnectRestart.String(); !strings.Contains(s, "of an I/O command: command size limit exceeded") {
		t.Error(s)
	}
	if s := nvme.Status(0x3ff).String(); s != "status type 3, code 0xff" {
		t.Error(s)
	}
}

func TestNQN(t *testing.T) {
	for nqn, valid := range map[string]bool{
		"nqn.2014-08.org.example:disk": true, nvme.DiscoveryNQN: true, "": false, "iqn.x": false, "nqn.a\x00b": false,
		"nqn." + strings.Repeat("x", nvme.MaxNQN-4): true, "nqn." + strings.Repeat("x", nvme.MaxNQN-3): false,
	} {
		if err := nvme.CheckNQN(nqn); (err == nil) != valid {
			t.Errorf("%q: %v", nqn, err)
		}
	}
	d := nvme.ConnectData{SubsystemNQN: "nqn.a", HostNQN: strings.Repeat("y", 256)} // without a NUL
	if _, err := nvme.ParseConnectData(d.Append(nil)); !errors.Is(err, syscall.EPROTO) {
		t.Error(err)
	}
}

// FuzzParse: no parser panics, and what one accepts is the same after encoding and parsing. The
// first byte selects the structure.
func FuzzParse(f *testing.F) {
	all := structures()
	for i, s := range all {
		f.Add(append([]byte{byte(i)}, s.append(nil)...))
	}
	f.Add([]byte{byte(0)})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		again(t, b[1:], int(b[0])%len(all))
	})
}

func again(t *testing.T, b []byte, i int) {
	switch structures()[i].name {
	case "command", "command with data":
		roundTrip(t, b, nvme.ParseCommand, (*nvme.Command).Append)
	case "completion":
		roundTrip(t, b, nvme.ParseCompletion, (*nvme.Completion).Append)
	case "connection request":
		roundTrip(t, b, nvme.ParseConnRequest, (*nvme.ConnRequest).Append)
	case "connection reply":
		roundTrip(t, b, nvme.ParseConnAccept, (*nvme.ConnAccept).Append)
	case "rejection":
		roundTrip(t, b, nvme.ParseConnReject, (*nvme.ConnReject).Append)
	case "connect data":
		roundTrip(t, b, nvme.ParseConnectData, (*nvme.ConnectData).Append)
	case "controller":
		roundTrip(t, b, nvme.ParseIdentifyController, (*nvme.IdentifyController).Append)
	case "namespace":
		roundTrip(t, b, nvme.ParseIdentifyNamespace, (*nvme.IdentifyNamespace).Append)
	case "independent namespace":
		roundTrip(t, b, nvme.ParseIndependentNamespace, (*nvme.IndependentNamespace).Append)
	case "descriptors":
		roundTrip(t, b, nvme.ParseDescriptors, (*nvme.Descriptors).Append)
	case "namespace list":
		roundTrip(t, b, nvme.ParseNamespaceList, func(v *[]uint32, b []byte) []byte { return nvme.AppendNamespaceList(b, *v) })
	case "SMART":
		roundTrip(t, b, nvme.ParseSMART, (*nvme.SMART).Append)
	case "error entry":
		roundTrip(t, b, nvme.ParseErrorEntry, (*nvme.ErrorEntry).Append)
	case "discovery header":
		roundTrip(t, b, nvme.ParseDiscoveryHeader, (*nvme.DiscoveryHeader).Append)
	case "discovery entry":
		_, _ = nvme.ParseDiscoveryEntry(b) // entries of other transports and families are not encoded
	case "range":
		roundTrip(t, b, nvme.ParseDSMRange, (*nvme.DSMRange).Append)
	default:
		t.Fatal("a structure is not fuzzed")
	}
}

func roundTrip[T any](t *testing.T, b []byte, parse func([]byte) (T, error), enc func(*T, []byte) []byte) {
	v, err := parse(b)
	if err != nil {
		if !errors.Is(err, syscall.EPROTO) {
			t.Error(err)
		}
		return
	}
	e := enc(&v, nil)
	w, err := parse(e)
	if err != nil || !reflect.DeepEqual(v, w) {
		t.Errorf("%x is %+v, and %x %+v, %v", b, v, e, w, err)
	}
}
