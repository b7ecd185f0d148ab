package host

import (
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// slot is a command that may be outstanding on a queue, and its memory. Its index is a part of the
// CID. The fields are protected by queue.mu while the command is outstanding. Otherwise they belong
// to the goroutine that has the slot.
type slot struct {
	waiter
	index      int
	generation uint16 // detects responses to earlier commands
	cid        uint16
	capsule    []byte // in queue.capsules
	send, bind verbs.SendWR
	sge        [2]verbs.SGE // the capsule, and data in it
	mwBind     verbs.MWBind
	window     *verbs.MW // nil before the first use

	responseDue   bool
	sendDue       bool // the capsule's memory is in use
	invalidateDue bool
	keyed         bool   // the window is bound
	rkey          uint32 // of the window
	abandoned     bool   // nobody waits
	endless       bool   // the command does not time out
	tick          uint32 // when the command was sent
	op            *Op    // of a Queue, or nil
	chunk         *chunk // that the command uses, or nil
	status        nvme.Status
	result        uint64
	err           error
}

// way is the direction of a command's data.
type way uint8

const (
	toHost way = iota
	fromHost
)

// transfer describes the data of a command: n bytes in the slot's memory, or at an offset of a
// region.
type transfer struct {
	way         way
	n           int
	mr          *verbs.MR
	off         int
	application bool // the region is of the application
}

// init initializes a slot.
func (s *slot) init(q *queue, index int) {
	s.index = index
	s.capsule = q.capsules.Buf()[index*nvme.CommandLen:][:nvme.CommandLen:nvme.CommandLen]
	s.sge[0] = q.capsules.SGE(index*nvme.CommandLen, nvme.CommandLen)
	s.send.Opcode = verbs.Send
	s.wake = make(chan struct{}, 1)
}

// bytes returns the first n bytes of a slot's memory for data.
func (q *queue) bytes(s *slot, n int) []byte { return q.data.Buf()[s.index*slotData:][:n:n] }

// prepareBind makes the work request that binds the slot's window to the application's memory.
func (s *slot) prepareBind(d *transfer) (err error) {
	if s.window == nil {
		if s.window, err = d.mr.PD().AllocMW(verbs.MWType2); err != nil {
			return err
		}
	}
	access := verbs.AccessRemoteWrite
	if d.way == fromHost {
		access = verbs.AccessRemoteRead
	}
	s.mwBind = verbs.MWBind{MW: s.window, RKey: verbs.IncRKey(s.window.RKey()), MWBindInfo: verbs.MWBindInfo{
		MR: d.mr, Addr: d.mr.Addr() + uint64(d.off), Length: uint64(d.n), Access: access}}
	s.bind = verbs.SendWR{Opcode: verbs.BindMW, Bind: &s.mwBind}
	return nil
}

// outcome returns the error of a completed command.
func (s *slot) outcome() error {
	if s.err != nil {
		return s.err
	}
	return s.status.Err()
}
