//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"math"
	"net/netip"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

func newRsocket(t *testing.T, domain int, datagrams cInt) (h cU32) {
	t.Helper()
	_, err := deviceList()
	check(t, err)
	var fd cInt
	check(t, srRsSocket(cInt(domain), datagrams, &h, &fd))
	t.Cleanup(func() { check(t, srRsClose(h)) })
	return h
}

// option returns the value of an option.
func option(t *testing.T, h cU32, option cInt) (v cInt) {
	t.Helper()
	check(t, srRsGetOption(h, option, &v))
	return v
}

// TestErrnoOfRsockets: the errno that librdmacm gives.
func TestErrnoOfRsockets(t *testing.T) {
	listening, fresh, datagrams := newRsocket(t, syscall.AF_INET, 0), newRsocket(t, syscall.AF_INET, 0), newRsocket(t, syscall.AF_INET, 1)
	check(t, srRsBind(listening, cAddrOf(addr+":7480")))
	check(t, srRsListen(listening, 1))
	check(t, srRsListen(listening, 1)) // again
	var wrong cAddr
	wrong.bytes[0] = 1
	var done cSize
	var h cU32
	var fd, v cInt
	var at64 _Ctype_int64_t
	buf := make([]byte, 8)
	b := unsafe.Pointer(&buf[0])
	for _, c := range []struct {
		call string
		err  cInt
		want syscall.Errno
	}{
		{"bind twice", srRsBind(listening, cAddrOf(addr+":7481")), syscall.EINVAL},
		{"bind to a used port", srRsBind(fresh, cAddrOf(addr+":7480")), syscall.EADDRINUSE},
		{"bind with a wrong family", srRsBind(fresh, &wrong), syscall.EAFNOSUPPORT},
		{"bind to another's address", srRsBind(fresh, cAddrOf("192.0.2.1:1")), syscall.EADDRNOTAVAIL},
		{"connect with a wrong family", srRsConnect(fresh, &wrong), syscall.EAFNOSUPPORT},
		{"connect a listener", srRsConnect(listening, cAddrOf(addr+":1")), syscall.EINVAL},
		{"accept nothing", srRsAccept(listening, &h, &fd), syscall.EAGAIN},
		{"accept without listening", srRsAccept(fresh, &h, &fd), syscall.EINVAL},
		{"accept datagrams", srRsAccept(datagrams, &h, &fd), syscall.EOPNOTSUPP},
		{"listen for datagrams", srRsListen(datagrams, 1), syscall.EOPNOTSUPP},
		{"receive unconnected", srRsRecv(fresh, b, 8, 0, &done), syscall.ENOTCONN},
		{"send unconnected", srRsSend(fresh, b, 8, &done), syscall.ENOTCONN},
		{"send from NULL", srRsSend(fresh, nil, 8, &done), syscall.EFAULT},
		{"send too much", srRsSend(fresh, b, math.MaxUint64, &done), syscall.EINVAL},
		{"receive to NULL", srRsRecvFrom(datagrams, nil, 8, 0, &done, &wrong), syscall.EAGAIN},
		{"send to no one", srRsSendTo(datagrams, b, 8, nil), syscall.EDESTADDRREQ},
		{"send to a wrong family", srRsSendTo(datagrams, b, 8, &wrong), syscall.EAFNOSUPPORT},
		{"send a datagram from NULL", srRsSendTo(datagrams, nil, 8, cAddrOf(addr+":1")), syscall.EFAULT},
		{"shut down unconnected", srRsShutdown(fresh, syscall.SHUT_WR), syscall.ENOTCONN},
		{"shut down unconnected datagrams", srRsShutdown(datagrams, syscall.SHUT_WR), syscall.ENOTCONN},
		{"name of no peer", srRsName(fresh, 1, &wrong), syscall.ENOTCONN},
		{"map unconnected", srRsMap(fresh, b, 8, -1, &at64), syscall.EINVAL},
		{"unmap nothing", srRsUnmap(fresh, b, 8), syscall.EINVAL},
		{"write unconnected", srRsWriteAt(fresh, b, 8, 0, &done), syscall.ENOTCONN},
		{"an unknown option", srRsSetOption(fresh, 99, 1), syscall.ENOPROTOOPT},
		{"get an unknown option", srRsGetOption(fresh, 99, &v), syscall.ENOPROTOOPT},
		{"set a state", srRsSetOption(fresh, _Ciconst_SR_RS_STATE, 1), syscall.ENOPROTOOPT},
		{"a negative size", srRsSetOption(fresh, _Ciconst_SR_RS_SNDBUF, -1), syscall.EINVAL},
		{"a size of the queue later", srRsSetOption(connecting(t), _Ciconst_SR_RS_SQSIZE, 64), syscall.EINVAL},
		{"a size of the buffer later", srRsSetOption(connecting(t), _Ciconst_SR_RS_SNDBUF, 64), 0}, // has no effect
		{"keep-alive after 0 s", srRsSetOption(fresh, _Ciconst_SR_RS_KEEPIDLE, 0), syscall.EINVAL},
		{"keep-alive after a day", srRsSetOption(fresh, _Ciconst_SR_RS_KEEPIDLE, 86400), syscall.EINVAL},
	} {
		fails(t, c.call, c.err, c.want)
	}
}

// connecting returns an rsocket that connects to a listener without a program.
func connecting(t *testing.T) cU32 {
	h := newRsocket(t, syscall.AF_INET, 0)
	fails(t, "connect", srRsConnect(h, cAddrOf("10.9.0.99:1")), syscall.EINPROGRESS)
	fails(t, "connect again", srRsConnect(h, cAddrOf("10.9.0.99:1")), syscall.EALREADY)
	return h
}

// TestRefused: SO_ERROR has the error of a failed connect, once, and the rsocket can connect again.
func TestRefused(t *testing.T) {
	h := newRsocket(t, syscall.AF_INET, 0)
	fails(t, "connect", srRsConnect(h, cAddrOf("127.0.0.1:7482")), syscall.EINPROGRESS)
	wait(t, h, pollOut)
	var revents cInt
	check(t, srRsArm(h, 0, &revents, new(cInt)))
	if revents != pollIn|pollOut|pollErr|pollHup {
		t.Errorf("events %#x, want all", revents)
	}
	if v := option(t, h, _Ciconst_SR_RS_ERROR); syscall.Errno(v) != syscall.ECONNREFUSED {
		t.Errorf("SO_ERROR is %v, want ECONNREFUSED", syscall.Errno(v))
	}
	if v := option(t, h, _Ciconst_SR_RS_ERROR); v != 0 {
		t.Errorf("SO_ERROR is %v the second time", syscall.Errno(v))
	}
	fails(t, "connect once more", srRsConnect(h, cAddrOf("127.0.0.1:7482")), syscall.EINPROGRESS)
}

// wait sleeps until the rsocket is ready for an event, as the front does.
func wait(t *testing.T, h cU32, events cInt) {
	t.Helper()
	for {
		var revents cInt
		fds := new([2]cInt)
		check(t, srRsArm(h, events, &revents, &fds[0]))
		if revents&(events|pollErr|pollHup) != 0 {
			check(t, srRsDisarm(h, events))
			return
		}
		list := []unix.PollFd{{Fd: int32(max(fds[0], fds[1])), Events: unix.POLLIN}}
		n, err := unix.Poll(list, 20000)
		check(t, srRsDisarm(h, events))
		if n == 0 || err != nil && err != unix.EINTR {
			t.Fatalf("the rsocket is not ready: %v", err)
		}
	}
}

// TestStream: a connection within the device, with both addresses in the socket's family.
func TestStream(t *testing.T) {
	listener, client := newRsocket(t, syscall.AF_INET6, 0), newRsocket(t, syscall.AF_INET6, 0)
	check(t, srRsBind(listener, cAddrOf("[::ffff:127.0.0.1]:7483")))
	check(t, srRsListen(listener, 4))
	fails(t, "connect", srRsConnect(client, cAddrOf("[::ffff:"+addr+"]:7483")), syscall.EINPROGRESS)
	wait(t, listener, pollIn)
	var server cU32
	var fd cInt
	check(t, srRsAccept(listener, &server, &fd))
	wait(t, client, pollOut)
	fails(t, "connect again", srRsConnect(client, cAddrOf("[::1]:7483")), syscall.EISCONN)
	var name cAddr
	check(t, srRsName(client, 1, &name))
	if a, err := sockaddr(&name); err != nil || a != netip.MustParseAddrPort("[::ffff:"+addr+"]:7483") {
		t.Errorf("the peer's name is %v, %v", a, err)
	}
	if v := [...]cInt{option(t, client, _Ciconst_SR_RS_STATE), option(t, listener, _Ciconst_SR_RS_STATE)}; v != [...]cInt{
		tcpEstablished, tcpListen} {
		t.Errorf("states %v", v)
	}
	buf, done := []byte("over the stream"), cSize(0)
	check(t, srRsSend(client, unsafe.Pointer(&buf[0]), cSize(len(buf)), &done))
	got := make([]byte, 64)
	for _, peek := range []cInt{1, 0} {
		wait(t, server, pollIn)
		check(t, srRsRecv(server, unsafe.Pointer(&got[0]), 64, peek, &done))
		if string(got[:done]) != "over the stream" {
			t.Errorf("received %q", got[:done])
		}
	}
	fails(t, "receive nothing", srRsRecv(server, unsafe.Pointer(&got[0]), 64, 0, &done), syscall.EAGAIN)
	fails(t, "shut down 3", srRsShutdown(client, 3), syscall.EINVAL)
	check(t, srRsShutdown(client, syscall.SHUT_WR))
	fails(t, "send after the end", srRsSend(client, unsafe.Pointer(&buf[0]), 1, &done), syscall.EPIPE)
	wait(t, server, pollIn)
	if err := srRsRecv(server, unsafe.Pointer(&got[0]), 64, 0, &done); err != 0 || done != 0 {
		t.Errorf("%d bytes after the end, %v", done, syscall.Errno(err))
	}
	check(t, srRsClose(server))
	fails(t, "close again", srRsClose(server), syscall.EBADF)
}

// TestClampedOptions: sizes that are out of bounds become the nearest ones.
func TestClampedOptions(t *testing.T) {
	for _, c := range []struct {
		option    cInt
		set, want cInt
	}{
		{_Ciconst_SR_RS_SQSIZE, 1, 16}, {_Ciconst_SR_RS_SQSIZE, 1 << 20, 0xfffe}, {_Ciconst_SR_RS_RQSIZE, 100, 100},
		{_Ciconst_SR_RS_SNDBUF, 1, 4096}, {_Ciconst_SR_RS_RCVBUF, math.MaxInt32, 1 << 29}, {_Ciconst_SR_RS_RCVBUF, 65537, 65536},
		{_Ciconst_SR_RS_INLINE, 0, 0}, {_Ciconst_SR_RS_IOMAPSIZE, 100, 100}, {_Ciconst_SR_RS_IOMAPSIZE, 129, 256},
		{_Ciconst_SR_RS_V6ONLY, 5, 1}, {_Ciconst_SR_RS_REUSEADDR, 5, 1}, {_Ciconst_SR_RS_KEEPALIVE, 5, 1},
		{_Ciconst_SR_RS_KEEPIDLE, 60, 60}, {_Ciconst_SR_RS_LINGER, 3, 3}, {_Ciconst_SR_RS_LINGER, -1, -1},
	} {
		h := newRsocket(t, syscall.AF_INET6, 0)
		check(t, srRsSetOption(h, c.option, c.set))
		if got := option(t, h, c.option); got != c.want {
			t.Errorf("option %d is %d after it was set to %d, want %d", c.option, got, c.set, c.want)
		}
	}
	h := newRsocket(t, syscall.AF_INET6, 0)
	for o, want := range map[cInt]cInt{_Ciconst_SR_RS_LINGER: -1, _Ciconst_SR_RS_KEEPIDLE: defaultIdle, _Ciconst_SR_RS_MAXSEG: 256} {
		if got := option(t, h, o); got != want {
			t.Errorf("option %d is %d by default, want %d", o, got, want)
		}
	}
	if c := clamped(rsocket.Config{}); c.SQSize != 0 || c.SendBuffer != 0 {
		t.Errorf("the defaults became %+v", c)
	}
}

// TestDatagrams: a datagram between two rsockets, with the sender's address.
func TestDatagrams(t *testing.T) {
	a, b := newRsocket(t, syscall.AF_INET, 1), newRsocket(t, syscall.AF_INET, 1)
	check(t, srRsBind(a, cAddrOf(addr+":7484")))
	check(t, srRsConnect(b, cAddrOf("127.0.0.1:7484"))) // binds it
	buf, got := []byte("datagram"), make([]byte, 4)
	var done cSize
	var from, own cAddr
	fails(t, "receive nothing", srRsRecvFrom(a, unsafe.Pointer(&got[0]), 4, 0, &done, &from), syscall.EAGAIN)
	for {
		err := srRsSendTo(b, unsafe.Pointer(&buf[0]), cSize(len(buf)), nil)
		if err == 0 {
			break
		}
		if err != cInt(syscall.EAGAIN) { // until the peer has answered
			check(t, err)
		}
		wait(t, b, pollOut)
	}
	wait(t, a, pollIn)
	check(t, srRsRecvFrom(a, unsafe.Pointer(&got[0]), 4, 0, &done, &from))
	check(t, srRsName(b, 0, &own))
	sender, err := sockaddr(&from)
	if local, _ := sockaddr(&own); err != nil || sender.Port() != local.Port() || sender.Addr() != netip.MustParseAddr(addr) ||
		string(got[:done]) != "data" {
		t.Errorf("received %q from %v, want it from port %d", got[:done], sender, local.Port())
	}
	check(t, srRsShutdown(b, syscall.SHUT_WR))
	fails(t, "send after the end", srRsSendTo(b, unsafe.Pointer(&buf[0]), 1, nil), syscall.EPIPE)
}
