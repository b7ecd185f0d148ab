//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cAddrOf returns a struct sockaddr.
func cAddrOf(text string) *cAddr {
	var c cAddr
	setSockaddr(&c, netip.MustParseAddrPort(text))
	return &c
}

func raw(c *cAddr) []byte { return (*[28]byte)(unsafe.Pointer(c))[:] }

// TestSockaddr: addresses are the same after a conversion to C and back, and have the bytes of
// struct sockaddr_in or sockaddr_in6.
func TestSockaddr(t *testing.T) {
	lo, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Skip("the network namespace has no interface 1: ", err)
	}
	for text, want := range map[string][]byte{
		"10.1.2.3:258":                {2, 0, 1, 2, 10, 1, 2, 3},
		"0.0.0.0:0":                   {2, 0, 0, 0, 0, 0, 0, 0},
		"[fd00::1]:65535":             {10, 0, 255, 255, 0, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		"[::ffff:10.1.2.3]:7":         {10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 2, 3},
		"[::]:0":                      {10, 0},
		"[fe80::1%" + lo.Name + "]:1": {10, 0, 0, 1, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0},
		"[fe80::1]:1":                 {10, 0, 0, 1, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
	} {
		a := netip.MustParseAddrPort(text)
		c := new(cAddr)
		for i := range c.bytes {
			c.bytes[i] = 0xff // of an earlier use
		}
		setSockaddr(c, a)
		if got := append(want, make([]byte, 28-len(want))...); !bytes.Equal(raw(c), got) {
			t.Errorf("%s: % x, want % x", text, raw(c), got)
		}
		if back, err := sockaddr(c); err != nil || back != a {
			t.Errorf("%s became %v, %v", text, back, err)
		}
	}
	var c cAddr
	c.bytes[0] = 1
	if setSockaddr(&c, noAddr); c != (cAddr{}) {
		t.Errorf("no address became % x", raw(&c))
	}
	if a, err := sockaddr(nil); a != noAddr || err != nil {
		t.Errorf("NULL became %v, %v", a, err)
	}
	for _, family := range []byte{0, 1, 16, 17, 255} {
		c.bytes[0] = cU8(family)
		_, err := sockaddr(&c)
		fails(t, "family", errno(err), syscall.EAFNOSUPPORT)
	}
	c = *cAddrOf("[fe80::1]:1")
	c.bytes[27] = 0x7f // no such interface
	if a, err := sockaddr(&c); err != nil || a != netip.MustParseAddrPort("[fe80::1]:1") {
		t.Errorf("a scope without an interface became %v, %v", a, err)
	}
	c = *cAddrOf("[fd00::1]:1")
	c.bytes[24] = 1 // means nothing for this address
	if a, err := sockaddr(&c); err != nil || a != netip.MustParseAddrPort("[fd00::1]:1") {
		t.Errorf("a scope of a global address: %v, %v", a, err)
	}
}

// TestLoopbackAddrs: a loopback address, and as a destination the unspecified one, stands for the
// device's first address of the family.
func TestLoopbackAddrs(t *testing.T) {
	newUser(t, roce)
	for in, want := range map[string][2]string{ // as a source and as a destination
		"127.0.0.1:5":          {addr + ":5", addr + ":5"},
		"127.9.9.9:5":          {addr + ":5", addr + ":5"},
		"[::ffff:127.0.0.1]:5": {addr + ":5", addr + ":5"},
		"[::1]:5":              {"[fd00:9::1]:5", "[fd00:9::1]:5"},
		"0.0.0.0:5":            {"0.0.0.0:5", addr + ":5"},
		"[::]:5":               {"[::]:5", "[fd00:9::1]:5"},
		"10.9.0.7:5":           {"10.9.0.7:5", "10.9.0.7:5"},
	} {
		a := netip.MustParseAddrPort(in)
		if got := [2]string{stacks.replaceLoopback(a).String(), stacks.replaceLoopbackOrAny(a).String()}; got != want {
			t.Errorf("%s became %v, want %v", in, got, want)
		}
	}
	if stacks.replaceLoopbackOrAny(noAddr) != noAddr {
		t.Error("no address became one")
	}
}

// TestConnParam: parameters of C. As in the kernel, a count that does not fit in 3 bits becomes 7.
func TestConnParam(t *testing.T) {
	data := []byte("private")
	c := _Ctype_struct_sr_cm_param{private_data: unsafe.Pointer(&data[0]), private_data_len: 4, responder_resources: 1, initiator_depth: 2,
		flow_control: 3, retry_count: 255, rnr_retry_count: 6, srq: 1, qp_num: 0xff000009}
	want := &rdmacm.ConnParam{PrivateData: []byte("priv"), ResponderResources: 1, InitiatorDepth: 2, FlowControl: true, RetryCount: 7,
		RNRRetryCount: 6, SRQ: true, QPNum: 9}
	if got := connParam(&c); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := connParam(&_Ctype_struct_sr_cm_param{private_data_len: 200}); !reflect.DeepEqual(got, new(rdmacm.ConnParam)) {
		t.Errorf("%+v, want zeros: there is no private data", got)
	}
	if got := connParam(nil); !reflect.DeepEqual(got, rdmacm.DefaultConnParam()) {
		t.Errorf("NULL became %+v", got)
	}
}

// TestEventParam: parameters of an event. C's field has room for 255 bytes of private data.
func TestEventParam(t *testing.T) {
	e := &rdmacm.Event{Param: filled[rdmacm.ConnParam](), UD: filled[rdmacm.UDParam](), Group: netip.MustParseAddr("239.1.2.3")}
	e.Param.PrivateData, e.UD.PrivateData = []byte("conn"), []byte("ud")
	var c _Ctype_struct_sr_cm_event
	setEventParam(&c, e)
	got := connParam(&c.conn)
	if got.PrivateData = e.Param.PrivateData; got.RetryCount != min(e.Param.RetryCount, 7) {
		t.Errorf("%+v, want %+v", got, e.Param)
	}
	if c.conn.responder_resources != cU8(e.Param.ResponderResources) || c.conn.initiator_depth != cU8(e.Param.InitiatorDepth) ||
		c.conn.flow_control != 1 || c.conn.srq != 1 || c.conn.qp_num != cU32(e.Param.QPNum) {
		t.Errorf("%+v, want %+v", c.conn, e.Param)
	}
	if c.ud.qp_num != cU32(e.UD.QPNum) || c.ud.qkey != cU32(e.UD.QKey) || ahAttr(&c.ud.ah_attr) != e.UD.AHAttr {
		t.Errorf("%+v, want %+v", c.ud, e.UD)
	}
	data := func() string { return string((*[255]byte)(unsafe.Pointer(&c.data))[:c.data_len]) }
	if a, err := sockaddr(&c.group); err != nil || a != netip.AddrPortFrom(e.Group, 0) || data() != "conn" {
		t.Errorf("group %v, %v, data %q", a, err, data())
	}
	e.Param.PrivateData, e.Group = nil, netip.Addr{}
	c = _Ctype_struct_sr_cm_event{}
	if setEventParam(&c, e); data() != "ud" || c.group != (cAddr{}) {
		t.Errorf("data %q, group % x", data(), raw(&c.group))
	}
	e.Param.PrivateData = bytes.Repeat([]byte{1}, 300)
	if setEventParam(&c, e); c.data_len != 255 {
		t.Errorf("%d bytes of data, want 255", c.data_len)
	}
}

// cmUser has an ID with its channel, as a program has.
type cmUser struct {
	testing.TB
	channel, id cU32
}

func newCMUser(t testing.TB, space rdmacm.PortSpace) *cmUser {
	t.Helper()
	_, err := deviceList()
	check(t, err)
	c := &cmUser{TB: t}
	var fd cInt
	check(t, srCMCreateChannel(&c.channel, &fd))
	t.Cleanup(func() { check(t, srCMDestroyChannel(c.channel)) })
	check(t, srCMCreateID(c.channel, 0x1234, cInt(space), &c.id))
	t.Cleanup(func() { check(t, srCMDestroyID(c.id, new(cU32))) })
	return c
}

// event waits for an event of a type.
func (c *cmUser) event(want rdmacm.EventType) (e _Ctype_struct_sr_cm_event) {
	c.Helper()
	for end := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		switch err := srCMGetEvent(c.channel, 0x5678, &e); {
		case err == 0 && e._type == cU32(want):
			return e
		case err == 0:
			c.Fatalf("event %v with status %d, want %v", rdmacm.EventType(e._type), e.status, want)
		case err != cInt(syscall.EAGAIN):
			check(c, err)
		case time.Now().After(end):
			c.Fatalf("there is no event %v", want)
		}
	}
}

// TestBindV6Only: where the machine limits sockets at [::] to IPv6, IDs and rsockets are limited
// too, unless they have the option.
func TestBindV6Only(t *testing.T) {
	interfaces.Namespace(t)
	const sysctl = "/proc/sys/net/ipv6/bindv6only"
	for i, only := range []bool{false, true} {
		if err := os.WriteFile(sysctl, []byte{byte('0' + i)}, 0); err != nil {
			t.Skip("the machine has no IPv6: ", err)
		}
		want := syscall.EADDRNOTAVAIL
		if only {
			want = 0
		}
		six, four := newCMUser(t, rdmacm.TCP), newCMUser(t, rdmacm.TCP)
		check(t, srCMBind(six.id, cAddrOf("[::]:7490")))
		if err := srCMBind(four.id, cAddrOf("0.0.0.0:7490")); syscall.Errno(err) != want {
			t.Errorf("bindv6only %t: 0.0.0.0 beside [::]: %d, want %v", only, err, want)
		}
		both, beside := newCMUser(t, rdmacm.TCP), newCMUser(t, rdmacm.TCP)
		check(t, srCMSetOption(both.id, _Ciconst_SR_CM_AFONLY, 0))
		check(t, srCMBind(both.id, cAddrOf("[::]:7491")))
		if err := srCMBind(beside.id, cAddrOf("0.0.0.0:7491")); syscall.Errno(err) != syscall.EADDRNOTAVAIL {
			t.Errorf("bindv6only %t: 0.0.0.0 beside [::] with the option: %d", only, err)
		}
		if v := option(t, newRsocket(t, syscall.AF_INET6, 0), _Ciconst_SR_RS_V6ONLY); v != cInt(i) {
			t.Errorf("bindv6only %t: IPV6_V6ONLY of an rsocket is %d", only, v)
		}
		for _, u := range []*cmUser{six, four, both, beside} {
			check(t, srCMDestroyID(u.id, new(cU32)))
			check(t, srCMCreateID(u.channel, 0, cInt(rdmacm.TCP), &u.id)) // which Cleanup destroys
		}
	}
}

// TestErrnoOfCM: the errno that librdmacm gives.
func TestErrnoOfCM(t *testing.T) {
	bound, other, fresh := newCMUser(t, rdmacm.TCP), newCMUser(t, rdmacm.TCP), newCMUser(t, rdmacm.TCP)
	check(t, srCMBind(bound.id, cAddrOf(addr+":7471")))
	var wrong cAddr
	wrong.bytes[0] = 1
	var param _Ctype_struct_sr_cm_param
	var attr cQPAttr
	var mask cInt
	for _, c := range []struct {
		call string
		err  cInt
		want syscall.Errno
	}{
		{"bind twice", srCMBind(bound.id, cAddrOf(addr+":7472")), syscall.EINVAL},
		{"bind to a used port", srCMBind(other.id, cAddrOf(addr+":7471")), syscall.EADDRINUSE},
		{"bind to another's address", srCMBind(fresh.id, cAddrOf("192.0.2.1:1")), syscall.EADDRNOTAVAIL},
		{"bind with a wrong family", srCMBind(fresh.id, &wrong), syscall.EAFNOSUPPORT},
		{"resolve with a wrong family", srCMResolveAddr(fresh.id, nil, &wrong, 100), syscall.EAFNOSUPPORT},
		{"resolve from a wrong family", srCMResolveAddr(fresh.id, &wrong, cAddrOf(addr+":1"), 100), syscall.EAFNOSUPPORT},
		{"resolve no address", srCMResolveAddr(fresh.id, nil, nil, 100), syscall.EINVAL},
		{"route without an address", srCMResolveRoute(fresh.id), syscall.EINVAL},
		{"connect without a route", srCMConnect(fresh.id, 0, &param), syscall.EINVAL},
		{"accept without a request", srCMAccept(fresh.id, 0, &param), syscall.EINVAL},
		{"reject without a request", srCMReject(fresh.id, nil, 0), syscall.EINVAL},
		{"reject with -1 bytes", srCMReject(fresh.id, nil, -1), syscall.EINVAL},
		{"disconnect without a connection", srCMDisconnect(fresh.id), syscall.EINVAL},
		{"write an event of the device's", srCMWriteEvent(fresh.id, cU32(rdmacm.AddrError), 0, 0), syscall.EINVAL},
		{"write an event of type 256 + USER", srCMWriteEvent(fresh.id, 256+cU32(rdmacm.User), 0, 0), syscall.EINVAL},
		{"an unknown option", srCMSetOption(fresh.id, 99, 1), syscall.ENOSYS},
		{"attributes for state 256", srCMInitQPAttr(fresh.id, &cQPAttr{qp_state: 256}, &mask), syscall.EINVAL},
		{"attributes without a device", srCMInitQPAttr(fresh.id, &attr, &mask), syscall.EINVAL},
		{"no event", srCMGetEvent(fresh.channel, 0, new(_Ctype_struct_sr_cm_event)), syscall.EAGAIN},
		{"a port space of none", srCMCreateID(fresh.channel, 0, 1<<16, new(cU32)), syscall.EINVAL},
		{"an unknown port space", srCMCreateID(fresh.channel, 0, 7, new(cU32)), syscall.EINVAL},
		{"join no group", srCMJoin(fresh.id, cAddrOf(addr+":1"), 0), syscall.EINVAL},
		{"a QP that is not there", srCMUseQP(fresh.id, 1<<30), syscall.EINVAL},
	} {
		fails(t, c.call, c.err, c.want)
	}
}

// TestConnect: events, cookies and addresses of a connection within the device.
func TestConnect(t *testing.T) {
	u := newUser(t, roce)
	server, client := newCMUser(t, rdmacm.TCP), newCMUser(t, rdmacm.TCP)
	check(t, srCMBind(server.id, cAddrOf(addr+":7473")))
	check(t, srCMListen(server.id, 1))
	check(t, srCMResolveAddr(client.id, nil, cAddrOf("127.0.0.1:7473"), 2000))
	client.event(rdmacm.AddrResolved)
	check(t, srCMResolveRoute(client.id))
	client.event(rdmacm.RouteResolved)
	var info _Ctype_struct_sr_cm_id
	check(t, srCMQueryID(client.id, &info))
	if dst, _ := sockaddr(&info.dst); info.dev != roce || info.port != 1 || info.routed != 1 || info.dgid != u.gid() ||
		dst != netip.MustParseAddrPort(addr+":7473") {
		t.Errorf("ID %+v", info)
	}
	connect := func(id, qp cU32, f func(cU32, cU32, *_Ctype_struct_sr_cm_param) cInt, data string) {
		b := []byte(data)
		check(t, f(id, qp, &_Ctype_struct_sr_cm_param{private_data: unsafe.Pointer(&b[0]), private_data_len: cU8(len(b)), retry_count: 7,
			rnr_retry_count: 7, responder_resources: 1, initiator_depth: 1}))
	}
	a, _ := u.newQP(verbs.RC)
	b, _ := u.newQP(verbs.RC)
	connect(client.id, a, srCMConnect, "hello")
	request := server.event(rdmacm.ConnectRequest)
	defer func() { check(t, srCMDestroyID(request.handle, new(cU32))) }()
	data := (*[255]byte)(unsafe.Pointer(&request.data))[:5]
	if request.id != 0x5678 || request.listen_id != 0x1234 || request.handle == 0 || string(data) != "hello" {
		t.Errorf("request %+v", request)
	}
	connect(request.handle, b, srCMAccept, "welcome")
	if e := client.event(rdmacm.Established); e.id != 0x1234 || e.listen_id != 0 {
		t.Errorf("established %+v", e)
	}
	server.event(rdmacm.Established)
	check(t, srCMDisconnect(client.id))
	server.event(rdmacm.Disconnected)
	check(t, srCMDisconnect(request.handle)) // answers the request
	client.event(rdmacm.Disconnected)
}
