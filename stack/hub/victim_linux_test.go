package hub

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// victimService is served by [Victim].
var victimService = stack.Service{ID: 0x76696374, Mask: ^uint64(0)}

const (
	victimDatagram = 1000 // bytes
	victimBatch    = 16   // datagrams of one superframe
	victimRole     = "victim"
)

// datagram appends a numbered datagram to b, for the client of a slot.
func datagram(b []byte, slot byte, number uint64) []byte {
	begin := len(b)
	b = binary.BigEndian.AppendUint64(append(b, slot, counted), number)
	for i := len(b) - begin; i < victimDatagram-1; i++ {
		b = append(b, byte(number)+byte(i))
	}
	return append(b, right)
}

// inspector checks the datagrams to a victim.
type inspector struct {
	slot   byte
	own    stack.Range
	next   atomic.Uint64 // number of the next expected datagram
	others atomic.Uint64 // datagrams of other clients
	wrong  chan error
}

func (v *inspector) fail(format string, args ...any) {
	select {
	case v.wrong <- fmt.Errorf(format, args...):
	default:
	}
}

func (v *inspector) take(a *Arrival) {
	if len(a.Payload) == 0 {
		return // package hub has refused it
	}
	size := len(a.Payload)
	if a.Segment > 0 {
		size = a.Segment
	}
	for b := a.Payload; len(b) > 0; b = b[min(size, len(b)):] {
		d := b[:min(size, len(b))]
		n := v.next.Load()
		switch {
		case a.SrcQPNs == v.own && bytes.Equal(d, datagram(nil, v.slot, n)):
			v.next.Store(n + 1)
		case a.SrcQPNs == v.own:
			v.fail("%x arrived, want datagram %d", d[:min(len(d), 16)], n)
		case a.SrcQPNs == stack.Range{} || len(d) > 1 && d[1] == claim:
			v.fail("%x arrived, from %v, QPNs %+v", d[:min(len(d), 16)], a.From, a.SrcQPNs)
		default:
			v.others.Add(1)
		}
	}
}

// Victim is a client that sends itself superframes through the hub until stdin ends. Each datagram
// must arrive once and unmodified. Datagrams of others must be permitted ones. It prints the slot
// of its QPNs at once. At the end it prints the numbers of received datagrams, its own and others'.
func Victim(dir string) error {
	systemRuntime = os.Getenv("SOFTRNIC_HUB_TEST_RUNTIME")
	v := &inspector{wrong: make(chan error, 1)}
	joined := make(chan bool)
	c, err := Join(ClientConfig{Directory: dir, Changed: func(lost bool) {
		if lost {
			v.fail("the hub is lost")
		}
	}, Receiver: func() func(*Arrival, bool) {
		return func(a *Arrival, _ bool) {
			<-joined
			v.take(a)
		}
	}})
	if err != nil {
		return err
	}
	v.own = c.Numbers().QPNs
	v.slot = byte(v.own.Base >> slotBits)
	close(joined)
	go c.Run()
	addr := netip.MustParseAddr(hostileAddr)
	out, err := net.DialUDP("udp", &net.UDPAddr{IP: addr.AsSlice()}, &net.UDPAddr{IP: addr.AsSlice(), Port: stack.RoCEPort})
	if err != nil {
		return err
	}
	raw, err := out.SyscallConn()
	if err == nil {
		err = errors.Join(c.AddAddr(addr, "lo"), c.AddSourceSockets(addr, raw), c.Serve(victimService))
	}
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, victimDatagram)
	}); e != nil || err != nil {
		return errors.Join(e, err)
	}
	fmt.Println(v.slot)
	ended := make(chan bool)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	var sent uint64
	for {
		select {
		case err := <-v.wrong:
			return err
		case <-ended:
			fmt.Println(v.next.Load(), v.others.Load())
			return nil
		default:
		}
		var b []byte
		for range victimBatch {
			b = datagram(b, v.slot, sent)
			sent++
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
		for give := time.Now().Add(20 * time.Second); v.next.Load() != sent && len(v.wrong) == 0; time.Sleep(50 * time.Microsecond) {
			if time.Now().After(give) {
				return fmt.Errorf("of %d datagrams %d arrived", sent, v.next.Load())
			}
		}
	}
}

// victimProcess is a [Victim] in a separate process.
type victimProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.Closer
	out    io.Reader
	stderr bytes.Buffer
	slot   uint32
	ended  chan error
}

func startVictim(t *testing.T, dir string) *victimProcess {
	t.Helper()
	v := &victimProcess{t: t, cmd: exec.Command(os.Args[0]), ended: make(chan error, 1)}
	v.cmd.Env = append(os.Environ(), "SOFTRNIC_HUB_TEST_ROLE="+victimRole, "SOFTRNIC_HUB_TEST_DIR="+dir,
		"SOFTRNIC_HUB_TEST_RUNTIME="+systemRuntime)
	v.cmd.Stderr = &v.stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	v.out, v.cmd.Stdout = r, w
	if v.in, err = v.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	go func() { v.ended <- v.cmd.Wait() }()
	t.Cleanup(func() { _ = v.cmd.Process.Kill() })
	if _, err := fmt.Fscan(v.out, &v.slot); err != nil {
		t.Fatalf("the other client prints no slot: %v\n%s", err, v.stderr.String())
	}
	return v
}

// isAlive reports whether the process is running.
func (v *victimProcess) isAlive() bool { return len(v.ended) == 0 }

// end ends the process, and reports its errors.
func (v *victimProcess) end() {
	v.t.Helper()
	_ = v.in.Close()
	var own, others uint64
	_, _ = fmt.Fscan(v.out, &own, &others)
	if err := <-v.ended; err != nil {
		v.t.Errorf("the other client was disturbed: %v\n%s", err, v.stderr.String())
		return
	}
	if v.t.Logf("result: the other client has received %d datagrams, and %d of hostile ones", own, others); own == 0 || others == 0 {
		v.t.Error("the other client has not received both")
	}
}
