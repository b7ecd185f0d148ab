package nfs

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// server is the address of an NFS server, written "tcp:HOST:PORT".
type server struct{ hostPort string }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *server) UnmarshalText(text []byte) error {
	hostPort, isTCP := strings.CutPrefix(string(text), "tcp:")
	host, port, err := net.SplitHostPort(hostPort)
	if !isTCP || err != nil || host == "" || port == "" {
		return fmt.Errorf("%s: must be tcp:HOST:PORT, as tcp:10.0.0.9:2049", text)
	}
	s.hostPort = hostPort
	return nil
}

const (
	// A client that gets no answer to its connection request repeats it for much longer.
	dialTimeout = 5 * time.Second
	// backwardCredits are the calls of a server to a client that may be outstanding. Linux's client
	// serves two at a time.
	backwardCredits = 8
	// maxBackward is the number of calls of a server that wait for credits or for the client.
	maxBackward = 64
	// maxRecord is the length of the longest RPC message: Linux reads and writes at most 1 MiB.
	maxRecord = 1<<20 + 64<<10
)

// msgCall is the type of a message that is a call (RFC 5531 §9).
const msgCall = 0

// forwarder passes the calls of clients to an NFS server over TCP, by one connection for each of
// theirs: servers bind sessions to connections.
type forwarder struct {
	address   string
	log       *slog.Logger
	upstreams sync.WaitGroup
}

// begin connects to the server for a client's connection.
func (f *forwarder) begin(ctx context.Context, c *rpcrdma.Conn) (rpcrdma.Handler, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := dialServer(dialing, f.address)
	if err != nil {
		f.log.Warn("the NFS server cannot be reached: a client was rejected", "client", c.PeerAddr().Addr(), "error", err)
		return nil, err
	}
	u := &upstream{conn: conn, client: c, log: f.log.With("client", c.PeerAddr()), replies: map[uint32]*expected{}}
	f.upstreams.Go(func() { u.run(ctx) })
	return u, nil
}

// upstream is the connection to the NFS server that belongs to the connection of a client. Either
// ends with the other.
type upstream struct {
	conn   net.Conn
	client *rpcrdma.Conn
	log    *slog.Logger

	writing sync.Mutex

	mu      sync.Mutex
	replies map[uint32]*expected // by XID
}

// expected is the reply to a call.
type expected struct {
	room  int
	reply chan []byte // of one
}

// HandleRPC implements rpcrdma.Handler.
func (u *upstream) HandleRPC(ctx context.Context, call *rpcrdma.Call) []byte {
	if len(call.Message) < 8 || binary.BigEndian.Uint32(call.Message[4:]) != msgCall {
		return nil
	}
	xid := binary.BigEndian.Uint32(call.Message)
	e := &expected{call.Room, make(chan []byte, 1)}
	u.mu.Lock()
	_, repeated := u.replies[xid]
	if !repeated {
		u.replies[xid] = e
	}
	u.mu.Unlock()
	if repeated { // on a connection that is not lost there is no reason for that
		return nil
	}
	u.send(call.Message)
	select {
	case reply := <-e.reply:
		return reply
	case <-ctx.Done():
		return nil
	}
}

// send sends an RPC message to the server. After an error both connections end.
func (u *upstream) send(message []byte) {
	u.writing.Lock()
	defer u.writing.Unlock()
	record := net.Buffers{recordMark(message), message}
	if _, err := record.WriteTo(u.conn); err != nil {
		u.client.Close()
	}
}

// run passes on what the server sends, until one of the connections ends.
func (u *upstream) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = u.conn.Close() })
	var calls sync.WaitGroup
	err := u.receive(ctx, &calls)
	if ctx.Err() == nil {
		u.log.Warn("the connection to the NFS server has ended: the client must connect again", "error", err)
	}
	u.client.Close()
	calls.Wait()
	stop()
	_ = u.conn.Close()
}

var errBackward = fmt.Errorf("the server has more than %d outstanding calls to the client", maxBackward)

func (u *upstream) receive(ctx context.Context, calls *sync.WaitGroup) error {
	in := &recordReader{r: bufio.NewReaderSize(u.conn, 64<<10), limit: maxRecord}
	slots := make(chan struct{}, maxBackward)
	for {
		if err := in.next(); err != nil {
			return err
		}
		head := make([]byte, 8)
		if _, err := io.ReadFull(in, head); err != nil {
			return err
		}
		xid, isCall := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:]) == msgCall
		e, limit := (*expected)(nil), maxShortCall // more than a call in the backward direction may have
		if !isCall {
			if e = u.take(xid); e != nil {
				limit = e.room + 1 // is too long, which the transport tells the client
			}
		}
		message, err := in.rest(head, limit)
		if err != nil {
			return err
		}
		switch {
		case e != nil:
			e.reply <- message
		case isCall:
			select {
			case slots <- struct{}{}:
			default:
				return errBackward
			}
			calls.Go(func() {
				u.callBack(ctx, message)
				<-slots
			})
		}
	}
}

// take returns the call that waits for a reply, or nil.
func (u *upstream) take(xid uint32) *expected {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.replies[xid]
	delete(u.replies, xid)
	return e
}

// callBack passes a call of the server to the client, and its reply to the server. A client that
// cannot take the call does not get it, and the server gets no reply.
func (u *upstream) callBack(ctx context.Context, call []byte) {
	reply, err := u.client.Call(ctx, call)
	switch {
	case err == nil:
		u.send(reply)
	case ctx.Err() == nil:
		u.log.Warn("a call of the NFS server did not reach the client", "error", err)
	}
}

// dialServer connects from a port below 1024 if this process may: Linux's server accepts no others
// by default.
func dialServer(ctx context.Context, address string) (conn net.Conn, err error) {
	const highest, lowest = 1023, 512
	for port := highest; port >= lowest && !errors.Is(err, os.ErrPermission); port-- {
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}
		var call *os.SyscallError
		conn, err = d.DialContext(ctx, "tcp", address)
		inUse := errors.Is(err, syscall.EADDRNOTAVAIL) || errors.As(err, &call) && call.Syscall == "bind"
		if !inUse {
			return conn, err
		}
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
