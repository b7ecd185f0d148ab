package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// workerEnv holds the task of a process that a test starts: "server MEDIUM DIRECTORY TRANSPORT
// ADDRESS:PORT", "client MEDIUM DIRECTORY TRANSPORT ADDRESS SERVER:PORT", the same with "victim",
// or "hub DIRECTORY". The medium is shm, hub, withoutRings or unshared.
const workerEnv = "SOFTRNIC_CHAOS_WORKER"

func TestMain(m *testing.M) {
	if task := os.Getenv(workerEnv); task != "" {
		if err := worker(strings.Fields(task)); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	segmentName = "chaos"
	service     = 7471     // of the first server
	depth       = 16       // receive requests, and SENDs in flight
	largest     = 40 << 10 // bytes of a message
)

func worker(task []string) (err error) {
	if task[0] == "hub" {
		return hub.Serve(context.Background(), hub.Config{Directory: task[1], Classifier: classify.New()})
	}
	role, medium, dir, at := task[0], task[1], task[2], task[4]
	transport := verbs.RoCEv2
	if task[3] == verbs.IWARP.String() {
		transport = verbs.IWARP
	}
	addr, _, _ := strings.Cut(at, ":")
	host, err := open(medium, dir, addr)
	if err != nil {
		return err
	}
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close(), host.Close()) }()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pd.Close()) }()
	cfg := &rdmacm.Config{Transport: transport, PD: pd, Cap: verbs.QPCap{MaxSendWR: 2 * depth, MaxRecvWR: 2 * depth, MaxSendSGE: 1,
		MaxRecvSGE: 1}}
	if role == "server" {
		return serve(dev, cfg, at)
	}
	mr, err := pd.RegMR(make([]byte, depth*largest), verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mr.Close()) }()
	stop := make(chan struct{})
	go func() { // the end of stdin ends the client
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		close(stop)
	}()
	if role == "victim" {
		fmt.Println("up")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := rdmacm.Dial(ctx, dev, task[5], cfg)
	if err != nil {
		return err
	}
	err = errors.Join(client(c, mr, stop, role == "client"), c.Close())
	// The data of the connection passes through memory. Without a hub, which may be down, the
	// disconnection is not sent.
	said, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(err, dev.Shutdown(said))
}

// awaitActive waits until the device's port is active, at most ten seconds. A process that ends
// waits for its own hub, and then two seconds for that of its peer.
func awaitActive(dev *verbs.Device) {
	for range 1000 {
		if p, err := dev.QueryPort(1); err != nil || p.State == verbs.PortActive {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// open opens the host of a process.
func open(medium, dir, addr string) (interface {
	stack.Network
	io.Closer
}, error) {
	if medium == "hub" || medium == withoutRings {
		start := func(string) error { return nil } // the test starts it
		h, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: &kernel.Sharing{Directory: dir, Start: start}})
		if medium == "hub" || err != nil {
			return h, err
		}
		return ringless{h}, nil
	}
	if medium == unshared {
		return kernel.New(&kernel.Config{Addrs: []string{addr}})
	}
	l, err := shm.Open(segmentName, &shm.Config{Directory: dir, Claims: []string{addr}, Logger: slog.Default()})
	if err != nil {
		return nil, err
	}
	return netstack.New(l, &netstack.Config{Addrs: []string{addr + "/16"}})
}

// unshared is an address of the process's own.
const unshared = "unshared"

// withoutRings is a hub whose client does not name the QPs of its paths, and so has no rings with
// other clients.
const withoutRings = "withoutRings"

type ringless struct{ *kernel.Host }

func (h ringless) NICs() (nics []stack.NIC) {
	for _, n := range h.Host.NICs() {
		nics = append(nics, ringlessNIC{n})
	}
	return nics
}

type ringlessNIC struct{ stack.NIC }

func (n ringlessNIC) Datagrams() stack.DatagramPort {
	p := n.NIC.Datagrams()
	return ringlessPort{p, p.(stack.Shared)}
}

type ringlessPort struct {
	stack.DatagramPort
	stack.Shared
}

func (p ringlessPort) Path(a stack.PathAttr) (stack.Path, error) {
	a.QPN = 0
	return p.DatagramPort.Path(a)
}

// fill writes message n: its number, and content derived from the number. A message of length 0 is
// the last.
func fill(b []byte, n uint64) {
	binary.BigEndian.PutUint64(b, n)
	r := rand.NewPCG(n, 1)
	for at := 8; at+8 <= len(b); at += 8 {
		binary.BigEndian.PutUint64(b[at:], r.Uint64())
	}
}

// length returns the length of message n.
func length(n uint64) int { return 16 + int(n*7919%(largest-16))&^7 }

// taken polls a CQ. It returns the number of completions, which must be successful.
func taken(cq *verbs.CQ) (int, error) {
	var wc [depth]verbs.WC
	n, err := cq.Poll(wc[:])
	for i := range wc[:n] {
		if wc[i].Status != verbs.WCSuccess {
			return n, fmt.Errorf("WR %d: %v", wc[i].WRID, wc[i].Status)
		}
	}
	return n, err
}

// client sends messages until stop, and then an empty one. At most depth messages are without an
// answer of the server: iWARP has no flow control for messages without a receive request.
func client(c *rdmacm.Conn, mr *verbs.MR, stop <-chan struct{}, says bool) error {
	for range depth {
		if err := c.QP().PostRecv(&verbs.RecvWR{}); err != nil {
			return err
		}
	}
	if says {
		fmt.Println("up")
	}
	b := mr.Buf()
	var sent, done, answered int
	// wait waits until at most most messages are without completion or answer.
	wait := func(most int) error {
		for sent-min(done, answered) > most {
			n, err := taken(c.QP().SendCQ())
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
			k, err := taken(c.QP().RecvCQ())
			if err != nil {
				return fmt.Errorf("answer: %w", err)
			}
			done, answered = done+n, answered+k
			for range k {
				if err := c.QP().PostRecv(&verbs.RecvWR{}); err != nil {
					return err
				}
			}
			if n+k == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
		return nil
	}
	post := func(list []verbs.SGE) error {
		err := c.QP().PostSend(&verbs.SendWR{WRID: uint64(sent), Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: list})
		sent++
		return err
	}
	for {
		select {
		case <-stop:
			if err := errors.Join(post(nil), wait(0)); err != nil {
				return err
			}
			fmt.Println("sent", sent-1)
			return nil
		default:
		}
		at, n := sent%depth*largest, length(uint64(sent))
		fill(b[at:at+n], uint64(sent))
		if err := errors.Join(post([]verbs.SGE{mr.SGE(at, n)}), wait(depth-1)); err != nil {
			return err
		}
	}
}

// receiver is a connection to a server, with the memory for its messages.
type receiver struct {
	c       *rdmacm.Conn
	mr      *verbs.MR
	answers int // in flight
}

// prepare posts the receive requests, before the peer can send.
func (r *receiver) prepare(c *rdmacm.Conn) (err error) {
	if r.mr, err = c.PD().RegMR(make([]byte, depth*largest), verbs.AccessLocalWrite); err != nil {
		return err
	}
	r.c = c
	for slot := range depth {
		err = errors.Join(err, r.post(uint64(slot)))
	}
	return err
}

func (r *receiver) post(slot uint64) error {
	return r.c.QP().PostRecv(&verbs.RecvWR{WRID: slot, SGList: []verbs.SGE{r.mr.SGE(int(slot)*largest, largest)}})
}

// answer reports to the client that a message has been received and that it may send another.
func (r *receiver) answer() error {
	err := r.c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled})
	for r.answers++; r.answers >= depth && err == nil; {
		err = r.answered()
	}
	return err
}

// answered takes the completions of answers.
func (r *receiver) answered() error {
	n, err := taken(r.c.QP().SendCQ())
	r.answers -= n
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

func (r *receiver) close() error { return errors.Join(r.c.Close(), r.mr.Close()) }

// receive calls see for each message and answers the message. It ends when see returns false or
// with an error.
func (r *receiver) receive(see func(b []byte) (bool, error)) error {
	b := r.mr.Buf()
	var wc [depth]verbs.WC
	for {
		n, err := r.c.QP().RecvCQ().Poll(wc[:])
		if err != nil {
			return err
		}
		for i := range wc[:n] {
			w := &wc[i]
			if w.Status != verbs.WCSuccess {
				return fmt.Errorf("receive: %v", w.Status)
			}
			more, err := see(b[int(w.WRID)*largest:][:w.ByteLen])
			if err = errors.Join(err, r.post(w.WRID)); err == nil {
				err = r.answer()
			}
			if err != nil {
				return err
			}
			if !more {
				// The client disconnects when it has the last answer. Its acknowledgement may come later, or be
				// lost with the hub, and the answer is then flushed.
				for r.answers > 0 && r.answered() == nil {
				}
				return nil
			}
		}
		if n == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// serve receives the messages of its client, which is the first to connect, and checks that each
// comes once, in order and unchanged. It accepts any messages of other clients, which may be killed
// at any time.
func serve(dev *verbs.Device, cfg *rdmacm.Config, at string) error {
	prepared := make(chan *receiver, 1024)
	cfg.Prepare = func(c *rdmacm.Conn) error {
		r := new(receiver)
		err := r.prepare(c)
		prepared <- r
		return err
	}
	l, err := rdmacm.Listen(dev, at, cfg)
	if err != nil {
		return err
	}
	fmt.Println("up")
	ctx, cancel := context.WithCancel(context.Background())
	var victims sync.WaitGroup
	defer func() {
		cancel()
		victims.Wait()
		_ = l.Close()
		for len(prepared) > 0 { // of processes that were killed while they connected
			_ = (<-prepared).mr.Close()
		}
	}()
	if _, err := l.Accept(ctx); err != nil {
		return err
	}
	r := <-prepared
	victims.Go(func() {
		for {
			v, err := l.Accept(ctx)
			if err != nil && ctx.Err() != nil {
				return
			}
			if err != nil {
				continue // it was killed while it connected
			}
			r := <-prepared
			for r.c != v { // of a process that was killed while it connected
				_ = r.mr.Close()
				r = <-prepared
			}
			victims.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = v.Close() })
				defer stop()
				_ = r.receive(func([]byte) (bool, error) { return true, nil })
				_ = r.close()
			})
		}
	})
	want, next := make([]byte, largest), uint64(0)
	err = r.receive(func(got []byte) (bool, error) {
		if len(got) == 0 {
			awaitActive(dev) // before the client is answered, which then disconnects
			fmt.Println("received", next)
			return false, nil
		}
		fill(want[:length(next)], next)
		if !bytes.Equal(got, want[:length(next)]) {
			return false, fmt.Errorf("message %d, of %d bytes, differs from the sent one", next, len(got))
		}
		next++
		return true, nil
	})
	<-r.c.Done()
	return errors.Join(err, r.close())
}
