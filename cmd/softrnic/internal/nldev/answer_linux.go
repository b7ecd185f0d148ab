package nldev

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
	"github.com/softrnic/softrnic/verbs"
)

// Serve answers the requests that arrive on a socket of packets until its other end is closed. The
// devices are those in sysfs below root. The socket of the program has a port ID.
func Serve(socket *os.File, root string, port uint32) error {
	s := server{root, port, func() ([]status.Node, error) { return query.All(context.Background()) }}
	buf := make([]byte, 1<<16)
	for {
		n, err := socket.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range s.answer(buf[:n]) {
			if _, err := socket.Write(m); err != nil {
				return err
			}
		}
	}
}

type server struct {
	root  string
	port  uint32
	nodes func() ([]status.Node, error) // of the user's processes
}

// answer returns the messages that answer a request.
func (s *server) answer(b []byte) (messages [][]byte) {
	r, ok := parse(b)
	if !ok {
		return nil
	}
	parts, err := s.execute(&r)
	if err != nil {
		errno := syscall.EIO
		_ = errors.As(err, &errno)
		return [][]byte{r.failed(s.port, errno)}
	}
	flags := uint16(0)
	if r.dump() {
		flags = unix.NLM_F_MULTI
	}
	for _, p := range parts {
		messages = append(messages, r.message(r.kind, flags, s.port, p))
	}
	switch {
	case r.dump():
		messages = append(messages, r.message(unix.NLMSG_DONE, flags, s.port, make([]byte, 4)))
	case r.flags&unix.NLM_F_ACK != 0:
		messages = append(messages, r.failed(s.port, 0))
	}
	return messages
}

// execute returns the attributes of each message of an answer.
func (s *server) execute(r *request) (parts []attributes, err error) {
	command := r.kind & (1<<10 - 1)
	if r.kind>>10 != clientNLDEV {
		return nil, syscall.EOPNOTSUPP
	}
	if command == cmdSysGet {
		var a attributes
		a.u8(attrNetNSMode, 1)  // devices are shared by network namespaces
		a.u8(attrCopyOnFork, 1) // a child has copies of its parent's memory
		return []attributes{a}, nil
	}
	describe, ok := map[uint16]func(*server, *device, *attributes) ([]attributes, error){
		cmdGet: (*server).device, cmdPortGet: (*server).devicePort, cmdResGet: (*server).summary, cmdResQPGet: (*server).qps,
		cmdStatGet: (*server).counters,
	}[command]
	if _, ofResource := r.attrs.u32Of(attrStatRes); !ok || ofResource {
		return nil, syscall.EOPNOTSUPP
	}
	devices, err := readDevices(s.root)
	if err != nil {
		return nil, err
	}
	index, one := r.attrs.u32Of(attrDevIndex)
	if one && int(index) >= len(devices) {
		return nil, syscall.EINVAL
	}
	for i := range devices {
		if one && i != int(index) {
			continue
		}
		var a attributes
		a.u32(attrDevIndex, uint32(i))
		a.text(attrDevName, devices[i].name)
		p, err := describe(s, &devices[i], &a)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p...)
	}
	return parts, nil
}

func (s *server) device(d *device, a *attributes) ([]attributes, error) {
	a.u32(attrPortIndex, 1) // the number of ports
	a.text(attrFWVersion, d.fw)
	a.u64(attrNodeGUID, uint64(d.nodeGUID))
	a.u64(attrSysImageGUID, uint64(d.imageGUID))
	a.u8(attrNodeType, d.nodeType)
	a.text(attrDevProtocol, d.protocol())
	return []attributes{*a}, nil
}

func (s *server) devicePort(d *device, a *attributes) ([]attributes, error) {
	a.u32(attrPortIndex, 1)
	a.u8(attrPortState, d.state)
	a.u8(attrPortPhysState, d.physState)
	if i := d.ifindex(); i != 0 {
		a.u32(attrNetdevIndex, i)
		a.text(attrNetdevName, d.netdev)
	}
	return []attributes{*a}, nil
}

func (s *server) counters(d *device, a *attributes) ([]attributes, error) {
	a.u32(attrPortIndex, 1)
	var table attributes
	for _, c := range d.hwCounters() {
		var entry attributes
		entry.text(attrHWName, c.name)
		entry.u64(attrHWValue, c.value)
		table.nest(attrHWEntry, entry)
	}
	a.nest(attrHWCounters, table)
	return []attributes{*a}, nil
}

// of returns the nodes with a device. Others may have its name, with other addresses. Addresses and
// GUIDs are those of several devices if rails have the same addresses.
func (s *server) of(d *device) (list []status.Node, err error) {
	nodes, err := s.nodes()
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.GUID == status.FormatGUID(d.imageGUID) && slices.Contains(n.Devices, d.name) {
			list = append(list, n)
		}
	}
	return list, nil
}

func (s *server) summary(d *device, a *attributes) ([]attributes, error) {
	nodes, err := s.of(d)
	if err != nil {
		return nil, err
	}
	var sum verbs.Resources
	qps := 0
	for _, n := range nodes {
		sum.PD, sum.CQ, sum.MR, sum.SRQ = sum.PD+n.Resources.PD, sum.CQ+n.Resources.CQ, sum.MR+n.Resources.MR, sum.SRQ+n.Resources.SRQ
		for _, q := range n.QPs {
			if d.has(&q) {
				qps++
			}
		}
	}
	list := []counter{{"qp", uint64(qps)}}
	if d.nodeType != uint8(verbs.NodeRNIC) { // the other objects are of both protocols
		list = append(list, counter{"pd", uint64(sum.PD)}, counter{"cq", uint64(sum.CQ)}, counter{"mr", uint64(sum.MR)},
			counter{"srq", uint64(sum.SRQ)})
	}
	var table attributes
	for _, c := range list {
		var entry attributes
		entry.text(attrResName, c.name)
		entry.u64(attrResCurrent, c.value)
		table.nest(attrResEntry, entry)
	}
	a.nest(attrResSummary, table)
	return []attributes{*a}, nil
}

// has reports whether a queue pair has the wire protocol of the device.
func (d *device) has(q *status.QP) bool {
	return (q.Transport == verbs.IWARP.String()) == (d.nodeType == uint8(verbs.NodeRNIC))
}

// qpTypes are the kernel's numbers of types (enum ib_qp_type), which verbs has others for.
var qpTypes = map[string]uint8{"RC": 2, "UC": 3, "UD": 4, "RAW_PACKET": 8, "XRC_SEND": 9, "XRC_RECV": 10}

var qpStates = map[string]uint8{"RESET": 0, "INIT": 1, "RTR": 2, "RTS": 3, "SQD": 4, "SQE": 5, "ERR": 6}

func (s *server) qps(d *device, a *attributes) (parts []attributes, err error) {
	nodes, err := s.of(d)
	if err != nil {
		return nil, err
	}
	head := slices.Clip(*a)
	var table attributes
	finish := func() {
		part := head
		part.nest(attrResQP, table)
		parts, table = append(parts, part), nil
	}
	for _, n := range nodes {
		for _, q := range n.QPs {
			if !d.has(&q) {
				continue
			}
			var entry attributes
			entry.u32(attrPortIndex, 1)
			entry.u32(attrResLQPN, q.Num)
			if connected := q.Type == "RC" || q.Type == "UC"; connected {
				entry.u32(attrResRQPN, q.DestQPNum)
				entry.u32(attrResRQPSN, q.RQPSN)
				entry.u8(attrResPathMig, 0) // migrated, which is the state without an alternate path
			}
			entry.u32(attrResSQPSN, q.SQPSN)
			entry.u8(attrResType, qpTypes[q.Type])
			entry.u8(attrResState, qpStates[q.State])
			entry.u32(attrResPID, uint32(n.PID))
			if headerSize+len(head)+len(table)+len(entry)+2*attrHeader > maxMessage {
				finish()
			}
			table.nest(attrResQPEntry, entry)
		}
	}
	finish()
	return parts, nil
}
