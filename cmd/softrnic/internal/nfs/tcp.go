package nfs

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs/rpcrdma"
)

// streams serves short RPC calls over TCP: Linux mounts over RDMA, but asks for the export's file
// handle, and for ports, over TCP.
type streams struct {
	handler rpcrdma.Handler
	slots   chan struct{}
	work    sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

const (
	maxStreams   = 64
	maxShortCall = 8 << 10
	streamIdle   = time.Minute // a connection without calls is closed
)

func newStreams(h rpcrdma.Handler) *streams {
	return &streams{handler: h, slots: make(chan struct{}, maxStreams), conns: map[net.Conn]bool{}}
}

// serve accepts connections until ctx ends, and then waits for their end.
func (s *streams) serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer s.work.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = l.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for conn := range s.conns {
			_ = conn.Close()
		}
	})()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			return err
		}
		select {
		case s.slots <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		s.work.Go(func() {
			defer func() { <-s.slots }()
			s.use(ctx, conn)
		})
	}
}

// use serves the calls of a connection.
func (s *streams) use(ctx context.Context, conn net.Conn) {
	s.mu.Lock()
	s.conns[conn] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		_ = conn.Close()
	}()
	local, _ := netip.ParseAddrPort(conn.LocalAddr().String())
	remote, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	in := bufio.NewReader(conn)
	for ctx.Err() == nil {
		_ = conn.SetDeadline(time.Now().Add(streamIdle))
		call, err := readRecord(in)
		if err != nil {
			return
		}
		reply := s.handler.HandleRPC(ctx, &rpcrdma.Call{Message: call, LocalAddr: local, PeerAddr: remote})
		if reply == nil {
			return
		}
		record := binary.BigEndian.AppendUint32(nil, lastFragment|uint32(len(reply)))
		if _, err := conn.Write(append(record, reply...)); err != nil {
			return
		}
	}
}

// readRecord reads a record of one or more fragments (RFC 5531 §11).
func readRecord(r io.Reader) (record []byte, err error) {
	for {
		var mark [4]byte
		if _, err := io.ReadFull(r, mark[:]); err != nil {
			return nil, err
		}
		n := binary.BigEndian.Uint32(mark[:])
		length := int64(n &^ lastFragment)
		if length > maxShortCall-int64(len(record)) || length == 0 && n&lastFragment == 0 {
			return nil, errors.New("the record is too long")
		}
		at := len(record)
		record = append(record, make([]byte, length)...)
		if _, err := io.ReadFull(r, record[at:]); err != nil {
			return nil, err
		}
		if n&lastFragment != 0 {
			return record, nil
		}
	}
}

// onlyMount serves MOUNT and nothing else.
func onlyMount(h rpcrdma.Handler) rpcrdma.Handler {
	return rpcrdma.HandlerFunc(func(ctx context.Context, r *rpcrdma.Call) []byte {
		if c, ok := parseCall(r.Message); ok && c.rpcVersion == 2 && c.program == programNFS {
			return c.accepted(acceptProgUnavail)
		}
		return h.HandleRPC(ctx, r)
	})
}
