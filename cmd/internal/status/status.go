// Package status publishes the state of a node's queue pairs to other processes of the user. Each
// node listens on a unix socket in a common directory. It reads a [Request] and answers with a
// [Node], both as JSON objects. Package query asks them: softrnic top asks all nodes, and softrnic
// impair and fault those of a process.
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
	"sync/atomic"
	"time"

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
	// Hidden nodes are for the answers of softrnic run to iproute2's rdma only: see query.All.
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
			if conn.SetDeadline(time.Now().Add(Timeout)) == nil {
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

// Timeout is the longest time of an answer.
const Timeout = 2 * time.Second

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
