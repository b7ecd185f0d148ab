// Package status publishes the state of a node's queue pairs to other processes of the user. Each
// node listens on a unix socket in a common directory. It reads a [Request] and answers with a
// [Node], both as JSON objects. softrnic top connects to all nodes, and softrnic impair and fault
// to those of a process.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/verbs"
)

// Node is the status of a node.
type Node struct {
	PID int `json:"pid"`
	// The process of the softrnic run --metrics that started the program.
	Run int `json:"run,omitempty"`
	// Hidden nodes are for the answers of softrnic run to iproute2's rdma only: see All.
	Hidden bool `json:"hidden,omitempty"`
	// Devices are the names of the devices as programs under softrnic run see them, and GUID is the
	// system image GUID of these in hexadecimal.
	Devices []string  `json:"devices,omitempty"`
	GUID    string    `json:"guid,omitempty"`
	Command string    `json:"command"`
	Link    string    `json:"link"`
	Addrs   []string  `json:"addrs"`
	Time    time.Time `json:"time"` // when the status was read
	verbs.Snapshot
	QPs []QP `json:"qps"`
	// Impairment is nil if the node's link cannot be impaired.
	Impairment *Impairment `json:"impairment,omitempty"`
	// Faults are the rules by which the device fails on purpose, and FaultsInjected is the number of
	// faults so far, also of rules that were ended.
	Faults         []fault.State `json:"faults,omitempty"`
	FaultsInjected uint64        `json:"faultsInjected,omitempty"`
	// Tunnel is nil without --secure.
	Tunnel *Tunnel `json:"tunnel,omitempty"`
	// Error is the reason why a request was not executed.
	Error string `json:"error,omitempty"`
}

// Impairment is the impairment of a node's link.
type Impairment struct {
	Spec string          `json:"spec"` // in the syntax of impair.Parse
	In   impair.Counters `json:"in"`
	Out  impair.Counters `json:"out"`
}

// Tunnel is the link of a node with --secure.
type Tunnel struct {
	PublicKey wireguard.PublicKey   `json:"publicKey"`
	Port      uint16                `json:"port"`
	MTU       int                   `json:"mtu"`
	Peers     []wireguard.PeerState `json:"peers"`
}

// Request asks a node for a change.
type Request struct {
	// Impair replaces the impairment of the node's link, if it is not nil.
	Impair *string `json:"impair,omitempty"`
	// Fault adds rules by which the device fails, if it is not nil. none ends all rules.
	Fault *string `json:"fault,omitempty"`
}

// QP is a queue pair.
type QP struct {
	Num       uint32            `json:"num"`
	Type      string            `json:"type"`
	Transport string            `json:"transport"`
	State     string            `json:"state"`
	Peer      string            `json:"peer,omitempty"` // IP address
	DestQPNum uint32            `json:"destQPNum,omitempty"`
	SQPSN     uint32            `json:"sqPSN,omitempty"`
	RQPSN     uint32            `json:"rqPSN,omitempty"`
	Sends     int               `json:"sends"` // posted and not completed
	Recvs     int               `json:"recvs"`
	Counters  map[string]uint64 `json:"counters"`
}

// FormatGUID returns a GUID as in Node.
func FormatGUID(guid verbs.GUID) string { return fmt.Sprintf("%016x", uint64(guid)) }

// of returns n with the state of a device.
func (n Node) of(dev *verbs.Device, impairment *node.Impairment, faults *node.Faults, tunnel *wireguard.Link) Node {
	if tunnel != nil {
		n.Tunnel = &Tunnel{tunnel.PublicKey(), tunnel.Port(), tunnel.MTU(), tunnel.Peers()}
	}
	n.GUID = FormatGUID(dev.QueryDevice().SysImageGUID)
	n.Time, n.Snapshot = time.Now(), dev.Snapshot()
	if impairment != nil {
		i := &Impairment{Spec: impairment.Spec()}
		i.In, i.Out = impairment.Counters()
		n.Impairment = i
	}
	if faults != nil {
		n.Faults, n.FaultsInjected = faults.List()
	}
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
		if attr, err := verbs.Attributes(qp); err == nil {
			q.SQPSN, q.RQPSN = attr.SQPSN, attr.RQPSN
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
// not know. Requests change impairment and faults, which may be nil. tunnel may be nil, too.
func Publish(dev *verbs.Device, impairment *node.Impairment, faults *node.Faults, tunnel *wireguard.Link,
	n Node) (stop func(), err error) {
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
		pause := accept.Pause{}
		for {
			conn, err := l.Accept()
			if err != nil {
				if !pause.After(context.Background(), err) {
					return
				}
				continue
			}
			pause = accept.Pause{}
			if conn.SetDeadline(time.Now().Add(askTimeout)) == nil {
				err := execute(conn, impairment, faults)
				answer := n.of(dev, impairment, faults, tunnel)
				if err != nil {
					answer.Error = err.Error()
				}
				_ = json.NewEncoder(conn).Encode(answer) // the client may have disconnected
			}
			_ = conn.Close()
		}
	}()
	return func() { _ = l.Close(); <-ended }, nil
}

// maxRequest is the largest request, in bytes.
const maxRequest = 64 << 10

// execute reads and executes a request.
func execute(conn io.Reader, impairment *node.Impairment, faults *node.Faults) error {
	var r Request
	err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&r)
	switch {
	case errors.Is(err, io.EOF) || err == nil && r == Request{}:
		return nil
	case err != nil:
		return fmt.Errorf("request: %w", err)
	case r.Fault != nil:
		if faults == nil {
			return errors.New("the device cannot be made to fail")
		}
		return faults.Add(*r.Fault)
	case impairment == nil:
		return errors.New("the link cannot be impaired: start the program with --impair none, or with another value of --impair")
	}
	return impairment.Set(*r.Impair)
}

// Bounds of a node's answer: its time, and its length in bytes, with room for 100,000 QPs.
const (
	askTimeout = 2 * time.Second
	maxAnswer  = 256 << 20
)

// Nodes returns the status of all nodes of this user, sorted by process ID. If pid is not 0, it
// returns the nodes of that process and of its descendants only. It removes sockets that killed
// processes have left.
func Nodes(ctx context.Context, pid int) ([]Node, error) { return Ask(ctx, pid, Request{}) }

// Ask is like Nodes, and each node executes r first. Node.Error says why one did not.
func Ask(ctx context.Context, pid int, r Request) ([]Node, error) {
	nodes, err := AskAll(ctx, pid, r)
	return slices.DeleteFunc(nodes, func(n Node) bool { return n.Hidden }), err
}

// All is like Nodes with a pid of 0, and includes hidden nodes.
func All(ctx context.Context) ([]Node, error) { return AskAll(ctx, 0, Request{}) }

// AskAll is like Ask, and includes hidden nodes.
func AskAll(ctx context.Context, pid int, r Request) ([]Node, error) {
	entries, err := os.ReadDir(Directory())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var nodes []Node
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), "-")
		if of, err := strconv.Atoi(name); pid != 0 && (err != nil || !descends(of, pid)) {
			continue
		}
		socket := filepath.Join(Directory(), e.Name())
		n, err := ask(ctx, socket, r)
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

func ask(ctx context.Context, socket string, r Request) (n Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return n, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return n, err
	}
	var answer json.RawMessage
	if err := json.NewDecoder(io.LimitReader(conn, maxAnswer)).Decode(&answer); err != nil {
		return n, err
	}
	return n, json.Unmarshal(plain(answer), &n)
}

// plain replaces control characters in the strings of a JSON value: other processes say what is
// shown on a terminal. A JSON value has backslashes in strings only.
func plain(value []byte) []byte {
	b := make([]byte, 0, len(value))
	for i := 0; i < len(value); {
		r, n := utf8.DecodeRune(value[i:])
		if r == '\\' { // as the value is valid, the rest of the escape follows
			switch n = 2; value[i+1] {
			case 'b', 'f', 'n', 'r', 't':
				r = 0
			case 'u':
				n = 6
				if code, err := strconv.ParseUint(string(value[i+2:i+6]), 16, 16); err == nil {
					r = rune(code)
				}
			}
		}
		if space := n == 1 && r < ' '; unicode.IsControl(r) && !space { // that is between the strings
			b = utf8.AppendRune(b, unicode.ReplacementChar)
		} else {
			b = append(b, value[i:i+n]...)
		}
		i += n
	}
	return b
}
