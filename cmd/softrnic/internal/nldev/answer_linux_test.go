package nldev

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/verbs"
)

// sysfs returns a directory with two devices: RoCE with an interface that the machine has, and
// iWARP with one that it lacks.
func sysfs(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"mlx5_0/fw_ver": "28.39.3004", "mlx5_0/node_type": "1: CA", "mlx5_0/node_guid": "0011:2233:4455:6677",
		"mlx5_0/sys_image_guid": "0011:2233:4455:6678", "mlx5_0/ports/1/state": "4: ACTIVE", "mlx5_0/ports/1/phys_state": "5: LinkUp",
		"mlx5_0/ports/1/gids/0":                     "fe80:0000:0000:0000:0000:00ff:fe00:0001",
		"mlx5_0/ports/1/gids/1":                     "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"mlx5_0/ports/1/gid_attrs/ndevs/0":          "lo",
		"mlx5_0/ports/1/counters/port_xmit_data":    "7",
		"mlx5_0/ports/1/hw_counters/port_xmit_data": "7", "mlx5_0/ports/1/hw_counters/cm_rx_msgs_req": "8",
		"mlx5_0/ports/1/hw_counters/sent_pkts": "9",
		"siw0/node_type":                       "4: RNIC", "siw0/ports/1/state": "1: DOWN", "siw0/ports/1/phys_state": "3: Disabled",
		"siw0/node_guid": "0011:2233:4455:6676", "siw0/sys_image_guid": "0011:2233:4455:6678",
		"siw0/ports/1/gids/0": "0200:0a00:0001:0000:0000:0000:0000:0000", "siw0/ports/1/gid_attrs/ndevs/0": "none0",
	} {
		file := filepath.Join(root, "sys/class/infiniband", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// ask sends a command with attributes, and returns the answer as a line for each message.
func ask(t *testing.T, s *server, command, flags uint16, attrs attributes) (lines []string) {
	t.Helper()
	r := request{seq: 77}
	b := r.message(clientNLDEV<<10|command, flags|unix.NLM_F_REQUEST, 0, attrs)
	for _, m := range s.answer(b) {
		if len(m) > maxMessage {
			t.Errorf("a message of %d bytes, which is longer than %d", len(m), maxMessage)
		}
		r, ok := parse(m)
		if !ok || r.seq != 77 || native.Uint32(m[12:]) != s.port || int(native.Uint32(m)) != len(m) {
			t.Fatalf("message % x", m)
		}
		switch {
		case r.kind == unix.NLMSG_ERROR:
			lines = append(lines, fmt.Sprint("error ", -int32(native.Uint32(r.attrs))))
		case r.kind == unix.NLMSG_DONE:
			lines = append(lines, "done")
		case r.kind != clientNLDEV<<10|command || (r.flags&unix.NLM_F_MULTI != 0) != (flags&unix.NLM_F_DUMP != 0):
			t.Errorf("an answer of type %#x with flags %#x to command %d", r.kind, r.flags, command)
		default:
			lines = append(lines, strings.TrimSpace(text(t, r.attrs)))
		}
	}
	return lines
}

var names = map[uint16]string{attrDevIndex: "dev", attrDevName: "name", attrPortIndex: "port", attrFWVersion: "fw", attrNodeGUID: "guid",
	attrSysImageGUID: "image", attrPortState: "state", attrPortPhysState: "phys", attrNodeType: "type", attrNetdevIndex: "ifindex",
	attrNetdevName: "netdev", attrDevProtocol: "protocol", attrResLQPN: "lqpn", attrResRQPN: "rqpn", attrResSQPSN: "sq-psn",
	attrResRQPSN: "rq-psn", attrResPathMig: "mig", attrResType: "qp", attrResState: "qpstate", attrResPID: "pid", attrResName: "res",
	attrResCurrent: "n", attrHWName: "counter", attrHWValue: "v", attrNetNSMode: "netns", attrCopyOnFork: "cof"}

// text decodes attributes.
func text(t *testing.T, a attributes) (s string) {
	t.Helper()
	for len(a) > 0 {
		length, kind := int(native.Uint16(a)), native.Uint16(a[2:])
		v := a[attrHeader:length]
		a = a[min((length+3)&^3, len(a)):]
		if kind&unix.NLA_F_NESTED != 0 {
			s += "{ " + text(t, v) + "} "
			continue
		}
		name := names[kind]
		if name == "" {
			t.Errorf("attribute %d", kind)
		}
		isText := slices.Contains([]uint16{attrDevName, attrFWVersion, attrNetdevName, attrDevProtocol, attrResName, attrHWName}, kind)
		switch {
		case isText:
			s += fmt.Sprintf("%s %s ", name, strings.TrimRight(string(v), "\x00"))
		case len(v) == 1:
			s += fmt.Sprintf("%s %d ", name, v[0])
		case len(v) == 4:
			s += fmt.Sprintf("%s %d ", name, native.Uint32(v))
		default:
			s += fmt.Sprintf("%s %#x ", name, native.Uint64(v))
		}
	}
	return s
}

// TestAnswers: the answers to what rdma asks, of all devices or of one.
func TestAnswers(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip(err)
	}
	const guid = "0011223344556678"
	other := []status.QP{{Num: 1, Type: "RC", Transport: verbs.RoCEv2.String(), State: "INIT"},
		{Num: 2, Type: "RC", Transport: verbs.IWARP.String(), State: "INIT"}}
	nodes := []status.Node{
		{PID: 4, GUID: guid, Devices: []string{"mlx5_0", "siw0"},
			Snapshot: verbs.Snapshot{Resources: verbs.Resources{PD: 1, MR: 2, CQ: 3}}, QPs: []status.QP{
				{Num: 0x11, Type: "RC", Transport: verbs.RoCEv2.String(), State: "RTS", DestQPNum: 0x12, SQPSN: 5, RQPSN: 6},
				{Num: 0x13, Type: "UD", Transport: verbs.RoCEv2.String(), State: "RTS", SQPSN: 7},
				{Num: 0x14, Type: "RC", Transport: verbs.IWARP.String(), State: "ERR"}}},
		{PID: 5, GUID: "0011223344556699", Devices: []string{"mlx5_0", "siw0"}, QPs: other},
		{PID: 6, GUID: guid, Devices: []string{"mlx5_1", "siw1"}, QPs: other}, // another rail with the same addresses
	}
	s := &server{sysfs(t), 1234, func() ([]status.Node, error) { return nodes, nil }}
	var first, second, missing, ofMR attributes
	first.u32(attrDevIndex, 0)
	second.u32(attrDevIndex, 1)
	missing.u32(attrDevIndex, 2)
	ofMR = slices.Clone(first)
	ofMR.u32(attrStatRes, 1)
	for _, c := range []struct {
		command, flags uint16
		attrs          attributes
		want           []string
	}{
		{cmdGet, unix.NLM_F_DUMP, nil, []string{
			"dev 0 name mlx5_0 port 1 fw 28.39.3004 guid 0x11223344556677 image 0x11223344556678 type 1 protocol roce",
			"dev 1 name siw0 port 1 fw  guid 0x11223344556676 image 0x11223344556678 type 4 protocol iw", "done"}},
		{cmdGet, unix.NLM_F_ACK, second, []string{
			"dev 1 name siw0 port 1 fw  guid 0x11223344556676 image 0x11223344556678 type 4 protocol iw", "error 0"}},
		{cmdPortGet, unix.NLM_F_DUMP, first, []string{fmt.Sprintf("dev 0 name mlx5_0 port 1 state 4 phys 5 ifindex %d netdev lo", lo.Index),
			"done"}},
		{cmdPortGet, 0, second, []string{"dev 1 name siw0 port 1 state 1 phys 3"}},
		{cmdStatGet, unix.NLM_F_ACK, first, []string{"dev 0 name mlx5_0 port 1 { { counter sent_pkts v 0x9 } }", "error 0"}},
		{cmdResGet, unix.NLM_F_ACK, first, []string{
			"dev 0 name mlx5_0 { { res qp n 0x2 } { res pd n 0x1 } { res cq n 0x3 } { res mr n 0x2 } { res srq n 0x0 } }", "error 0"}},
		{cmdResGet, 0, second, []string{"dev 1 name siw0 { { res qp n 0x1 } }"}},
		{cmdResQPGet, unix.NLM_F_DUMP, first, []string{"dev 0 name mlx5_0 { " +
			"{ port 1 lqpn 17 rqpn 18 rq-psn 6 mig 0 sq-psn 5 qp 2 qpstate 3 pid 4 } { port 1 lqpn 19 sq-psn 7 qp 4 qpstate 3 pid 4 } }", "done"}},
		{cmdResQPGet, unix.NLM_F_DUMP, second, []string{
			"dev 1 name siw0 { { port 1 lqpn 20 rqpn 0 rq-psn 0 mig 0 sq-psn 0 qp 2 qpstate 6 pid 4 } }", "done"}},
		{cmdSysGet, unix.NLM_F_ACK, nil, []string{"netns 1 cof 1", "error 0"}},
		{cmdGet, unix.NLM_F_ACK, missing, []string{fmt.Sprint("error ", int(syscall.EINVAL))}},
		{cmdStatGet, unix.NLM_F_DUMP, ofMR, []string{fmt.Sprint("error ", int(syscall.EOPNOTSUPP))}},
		{cmdResQPGet + 2, unix.NLM_F_DUMP, first, []string{fmt.Sprint("error ", int(syscall.EOPNOTSUPP))}}, // CQs
		{2, unix.NLM_F_ACK, first, []string{fmt.Sprint("error ", int(syscall.EOPNOTSUPP))}},                // a change
	} {
		if got := ask(t, s, c.command, c.flags, c.attrs); !slices.Equal(got, c.want) {
			t.Errorf("command %d, flags %#x, attributes % x:\n%q\nwant\n%q", c.command, c.flags, []byte(c.attrs), got, c.want)
		}
	}
}

// TestManyQPs: messages are not longer than rdma's buffer.
func TestManyQPs(t *testing.T) {
	n := status.Node{GUID: "0011223344556678", Devices: []string{"mlx5_0"}}
	for i := range 500 {
		n.QPs = append(n.QPs, status.QP{Num: uint32(i), Type: "RC", Transport: verbs.RoCEv2.String(), State: "RTS"})
	}
	s := &server{sysfs(t), 1, func() ([]status.Node, error) { return []status.Node{n}, nil }}
	var first attributes
	first.u32(attrDevIndex, 0)
	seen := map[string]bool{}
	for _, line := range ask(t, s, cmdResQPGet, unix.NLM_F_DUMP, first) {
		for _, entry := range strings.Split(line, "lqpn ")[1:] {
			number, _, _ := strings.Cut(entry, " ")
			seen[number] = true
		}
	}
	if len(seen) != len(n.QPs) {
		t.Errorf("%d of %d QPs: %v", len(seen), len(n.QPs), slices.Sorted(maps.Keys(seen)))
	}
}

// TestMalformed: requests that are cut off or whose lengths lie are not answered as if they were
// whole.
func TestMalformed(t *testing.T) {
	s := &server{sysfs(t), 1, func() ([]status.Node, error) { return nil, nil }}
	var first attributes
	first.u32(attrDevIndex, 0)
	r := request{}
	whole := r.message(clientNLDEV<<10|cmdGet, unix.NLM_F_REQUEST, 0, first)
	for length := range whole {
		if got := s.answer(whole[:length]); got != nil {
			t.Errorf("the first %d bytes of %d are answered", length, len(whole))
		}
	}
	for i := range whole {
		for _, v := range []byte{0, 1, 0x7f, 0xff} {
			b := slices.Clone(whole)
			b[i] = v
			s.answer(b) // does not panic
		}
	}
}

// TestServe: requests on a socket of packets are answered until the program closes its end.
func TestServe(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	program, own := os.NewFile(uintptr(fds[0]), "program"), os.NewFile(uintptr(fds[1]), "softrnic")
	ended := make(chan error, 1)
	root := sysfs(t)
	go func() { ended <- Serve(own, root, 9) }()
	r := request{seq: 3}
	if _, err := program.Write(r.message(clientNLDEV<<10|cmdSysGet, unix.NLM_F_REQUEST|unix.NLM_F_ACK, 0, nil)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []uint16{clientNLDEV<<10 | cmdSysGet, unix.NLMSG_ERROR} {
		b := make([]byte, maxMessage)
		n, err := program.Read(b)
		if m, ok := parse(b[:n]); err != nil || !ok || m.kind != kind || m.seq != 3 {
			t.Errorf("%v % x, want type %d", err, b[:n], kind)
		}
	}
	if err := program.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	_ = own.Close()
}
