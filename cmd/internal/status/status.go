// Package status is how a node tells other processes of its user what its queue pairs do. Each node listens on a unix socket in
// one directory, and answers HTTP requests for /status there; softrnic top asks.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/verbs"
)

// Node is what a node tells of itself.
type Node struct {
	PID       int               `json:"pid"`
	Command   string            `json:"command"`
	Device    string            `json:"device"`
	Link      string            `json:"link"`
	Addrs     []string          `json:"addrs"`
	Time      time.Time         `json:"time"` // when it was so
	Resources verbs.Resources   `json:"resources"`
	Counters  map[string]uint64 `json:"counters"`
	QPs       []QP              `json:"qps"`
}

// QP is a queue pair.
type QP struct {
	Num       uint32            `json:"num"`
	Type      string            `json:"type"`
	Transport string            `json:"transport"`
	State     string            `json:"state"`
	Peer      string            `json:"peer,omitempty"` // IP address
	DestQPNum uint32            `json:"destQPNum,omitempty"`
	Sends     int               `json:"sends"` // posted and not complete
	Recvs     int               `json:"recvs"`
	Counters  map[string]uint64 `json:"counters"`
}

// of reads what a device does.
func (n Node) of(dev *verbs.Device) Node {
	n.Device, n.Time, n.Resources, n.Counters = dev.Name(), time.Now(), dev.Resources(), dev.HWCounters()
	n.QPs = []QP{}
	for _, qp := range dev.QPs() {
		s, err := qp.Stats()
		if err != nil {
			continue // it is destroyed
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

// Directory is where nodes have their sockets.
func Directory() string { return filepath.Join(userdir.Default(), "nodes") }

var published atomic.Uint64 // nodes of this process so far

// Publish answers for a device until the function that it returns is called. n has what the device does not know.
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
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(n.of(dev)) // who asked may be gone
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	ended := make(chan struct{})
	go func() {
		_ = s.Serve(l)
		close(ended)
	}()
	return func() { _ = s.Close(); <-ended }, nil
}

// askTimeout is how long a node may take to answer.
const askTimeout = 2 * time.Second

// Nodes asks all nodes of this user, or only those of the process pid if that is not 0, and returns them in the order of their
// processes. A socket that a killed process has left is removed.
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
			_ = os.Remove(socket)
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
	var d net.Dialer
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/status", nil)
	if err != nil {
		return n, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return n, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return n, errors.New(resp.Status)
	}
	return n, json.NewDecoder(resp.Body).Decode(&n)
}
