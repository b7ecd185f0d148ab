//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/tests/system/interop/peer/control"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmLab is an environment for rdma_cm: a SoftRNIC device in the network of a peer whose rdma_cm
// uses the same transport.
type cmLab struct {
	peer      *peer.Peer
	dev       *verbs.Device
	transport verbs.Transport
}

// openCM opens a SoftRNIC device on a TAP beside a peer, until the test ends. Its packets are
// captured and checked.
func openCM(t *testing.T, transport verbs.Transport) cmLab {
	t.Helper()
	capturing := captured
	if transport == verbs.IWARP {
		capturing = capturedIWARP
	}
	p := cmPeer(t, 2, transport)
	return cmLab{p, openSoftRNIC(t, capturing(t, openTAP(t, p.Netns)), nil).(softrnic).dev, transport}
}

// cmPeer boots a peer whose rdma_cm uses the transport: it prefers rxe0 if that exists.
func cmPeer(t *testing.T, id int, transport verbs.Transport) *peer.Peer {
	t.Helper()
	if transport == verbs.RoCEv2 {
		return peer.Boot(t, peer.Config{ID: id})[0]
	}
	p := peer.Boot(t, peer.Config{ID: id + 50})[0]
	useTransport(t, p, transport)
	return p
}

// useTransport makes a peer have rxe0 or siw0, and not the other.
func useTransport(t *testing.T, p *peer.Peer, transport verbs.Transport) {
	t.Helper()
	if transport == verbs.IWARP {
		p.Run(t, "if rdma link show rxe0/1; then rdma link del rxe0; modprobe siw; rdma link add siw0 type siw netdev eth0; fi")
	} else {
		p.Run(t, "if rdma link show siw0/1; then rdma link del siw0; rdma link add rxe0 type rxe netdev eth0; fi")
	}
}

// cmPair is a lab in one IP version.
type cmPair struct {
	cmLab
	here, there netip.Addr
}

// families are the IP versions of a test: both in the long run. In the system run it is one, which
// depends on the name of the test.
func families(t *testing.T) []string {
	both := []string{"IPv4", "IPv6"}
	if gate.InLong() {
		return both
	}
	sum := fnv.New32a()
	sum.Write([]byte(t.Name()))
	return both[sum.Sum32()%2:][:1]
}

// eachFamily runs a test over the IP versions of families.
func (l cmLab) eachFamily(t *testing.T, f func(t *testing.T, p cmPair)) {
	for _, family := range families(t) {
		p := cmPair{l, softrnicAddr4, l.peer.Addr4()}
		if family == "IPv6" {
			p.here, p.there = softrnicAddr6, l.peer.Addr6()
		}
		t.Run(family, func(t *testing.T) { f(t, p) })
	}
}

// cmPatience is the time limit of the two programs of a test, on an emulated peer.
const cmPatience = 2 * time.Minute

// kernelServes starts a server in the peer, and calls client when it listens. The server must end
// by itself with success. siw may reset the client's stream after a server has sent everything: the
// server closes its socket with the client's last credits unread, and TCP then drops unsent data
// (RFC 1122 §4.2.2.13). Both then start again.
func (p cmPair) kernelServes(t *testing.T, command string, client func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	for tries := 5; ; tries-- {
		serving := p.startServer(t, command)
		err := client(ctx)
		reset := p.transport == verbs.IWARP && errors.Is(err, syscall.ECONNRESET)
		if err != nil && !reset {
			cancel()
		}
		code, serverErr := serving.Wait(ctx)
		if reset && serverErr == nil && code == 0 && tries > 0 {
			t.Logf("again: %v", err)
			continue
		}
		if err != nil {
			t.Errorf("SoftRNIC: %v", err)
		}
		if serverErr != nil || code != 0 {
			t.Errorf("%s: exit status %d, %v\n%s", command, code, serverErr, serving.Output())
		}
		return
	}
}

// endlessKernelServes is kernelServes for a server that does not end: it is killed.
func (p cmPair) endlessKernelServes(t *testing.T, command string, client func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	serving := p.startServer(t, command)
	if err := client(ctx); err != nil {
		t.Errorf("SoftRNIC: %v\n%s", err, serving.Output())
	}
	if err := serving.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := serving.Wait(ctx); err != nil {
		t.Error(err)
	}
}

// startServer starts a server in the peer and waits until it listens. It is killed when the test
// ends, at the latest.
func (p cmPair) startServer(t *testing.T, command string) *control.Process {
	t.Helper()
	serving, err := p.peer.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serving.Kill() })
	p.peer.Run(t, untilListens(command))
	return serving
}

// untilListens waits, in a peer, until a program of that name listens with rdma_cm.
func untilListens(command string) string {
	name, _, _ := strings.Cut(command, " ")
	return fmt.Sprintf("until rdma resource show cm_id | grep -q 'LISTEN.* comm %s '; do sleep 0.05; done", name)
}

// kernelConnects runs a client in the peer against a server that listens already. Both must end
// with success.
func (p cmPair) kernelConnects(t *testing.T, command string, server func(ctx context.Context) error) (output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		err := server(ctx)
		if err != nil {
			cancel()
		}
		served <- err
	}()
	out, code, err := p.peer.Exec(ctx, command)
	if err != nil || code != 0 {
		t.Errorf("%s: exit status %d, %v\n%s", command, code, err, out)
		cancel()
	}
	if err := <-served; err != nil {
		t.Errorf("SoftRNIC: %v", err)
	}
	return out
}

// cmProgram is a program written against rdma_cm's events, here or by others.
type cmProgram struct {
	dev *verbs.Device
	ch  *rdmacm.EventChannel
}

func newCMProgram(t *testing.T, dev *verbs.Device) cmProgram {
	t.Helper()
	ch, err := rdmacm.CreateEventChannel(dev)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, ch.Close)
	return cmProgram{dev, ch}
}

// createID creates an ID for a transport, until the test ends or it is closed.
func (p cmProgram) createID(space rdmacm.PortSpace, transport verbs.Transport, context any) (*rdmacm.ID, error) {
	id, err := p.ch.CreateID(space, context)
	if err != nil {
		return nil, err
	}
	return id, id.SetTransports(transport)
}

// listen creates a listener that ends with the test.
func (p cmProgram) listen(t *testing.T, space rdmacm.PortSpace, transport verbs.Transport, addr netip.AddrPort) *rdmacm.ID {
	t.Helper()
	id, err := p.createID(space, transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, id.Close)
	if err := id.Bind(addr); err != nil {
		t.Fatal(err)
	}
	if err := id.Listen(0); err != nil {
		t.Fatal(err)
	}
	return id
}

// events passes events to a function until it returns false, and acknowledges them.
func (p cmProgram) events(ctx context.Context, handle func(*rdmacm.Event) (enough bool, err error)) error {
	for {
		e, err := p.ch.GetEvent(ctx)
		if err != nil {
			return err
		}
		enough, err := handle(e)
		if e := e.Ack(); e != nil {
			return e
		}
		if enough || err != nil {
			return err
		}
	}
}
