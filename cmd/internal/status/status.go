// Package status publishes the state of a node's queue pairs to other processes of the user. Each
// node listens on a unix socket in a common directory. It answers each connection with a JSON
// object, a [Node]. softrnic top connects to all nodes.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/internal/link/userdir"
	"github.com/softrnic/softrnic/verbs"
)

// Node is the status of a node.
type Node struct {
	PID int `json:"pid"`
	// The process of the softrnic run --metrics that started the program.
	Run     int       `json:"run,omitempty"`
	Command string    `json:"command"`
	Link    string    `json:"link"`
	Addrs   []string  `json:"addrs"`
	Time    time.Time `json:"time"` // when the status was read
	verbs.Snapshot
	QPs []QP `json:"qps"`
}

// QP is a queue pair.
type QP struct {
	Num       uint32            `json:"num"`
	Type      string            `json:"type"`
	Transport string            `json:"transport"`
	State     string            `json:"state"`
	Peer      string            `json:"peer,omitempty"` // IP address
	DestQPNum uint32            `json:"destQPNum,omitempty"`
	Sends     int               `json:"sends"` // posted and not completed
	Recvs     int               `json:"recvs"`
	Counters  map[string]uint64 `json:"counters"`
}

// of returns n with the state of a device.
func (n Node) of(dev *verbs.Device) Node {
	n.Time, n.Snapshot = time.Now(), dev.Snapshot()
	n.QPs = []QP{}
	for _, qp := range dev.QPs() {
		s, err := qp.Stats()
		if err != nil {
			continue // the QP was closed
		}
		q := QP{
			Num: qp.Num(), Type: qp.Type().String(), Transport: qp.Transport().String(), State: s.State.String(),
			DestQPNum: s.DestQPNum, Sends: s.Sends, Recvs: s.Recvs, Counters: s.Counters,
		}
		if s.Peer.IsValid() {
			q.Peer = s.Peer.String()
		}
		n.QPs = append(n.QPs, q)
	}
	return n
}

// Directory returns the directory of the nodes' sockets.
func Directory() string { return filepath.Join(userdir.Default(), "nodes") }

var published atomic.Uint64 // number of nodes of this process so far

// Publish publishes a device's status until stop is called. n has the fields that the device does
// not know.
func Publish(dev *verbs.Device, n Node) (stop func(), err error) {
	dir := Directory()
	if err := makeDirectory(dir); err != nil {
		return nil, err
	}
	n.PID = os.Getpid()
	l, err := net.Listen("unix", filepath.Join(dir, fmt.Sprintf("%d-%d", n.PID, published.Add(1))))
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if conn.SetDeadline(time.Now().Add(askTimeout)) == nil {
				_ = json.NewEncoder(conn).Encode(n.of(dev)) // the client may have disconnected
			}
			_ = conn.Close()
		}
	}()
	return func() { _ = l.Close(); <-ended }, nil
}

// askTimeout bounds the time of a node's answer.
const askTimeout = 2 * time.Second

// Nodes returns the status of all nodes of this user, sorted by process ID. If pid is not 0, it
// returns the nodes of that process only. It removes sockets that killed processes have left.
func Nodes(ctx context.Context, pid int) ([]Node, error) {
	entries, err := os.ReadDir(Directory())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var nodes []Node
	for _, e := range entries {
		if of, _, _ := strings.Cut(e.Name(), "-"); pid != 0 && of != strconv.Itoa(pid) {
			continue
		}
		socket := filepath.Join(Directory(), e.Name())
		n, err := ask(ctx, socket)
		switch {
		case err == nil:
			nodes = append(nodes, n)
		case refused(err):
			// Its process has died, or is between bind and listen.
			if i, err := e.Info(); err == nil && time.Since(i.ModTime()) > time.Second {
				_ = os.Remove(socket)
			}
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
	slices.SortStableFunc(nodes, func(a, b Node) int { return a.PID - b.PID })
	return nodes, nil
}

func ask(ctx context.Context, socket string) (n Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return n, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	return n, json.NewDecoder(conn).Decode(&n)
}
