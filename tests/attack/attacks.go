package attack

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// Victim is a connection of two SoftRNICs. The requester is behind the Path.
type Victim struct {
	Path *Path
	// Write WRITEs a text of TextLen bytes at an offset of the responder's region, and waits for the
	// completion.
	Write func(text []byte, at int) (verbs.WCStatus, error)
	// Region returns the content of the responder's region, which has RegionLen bytes.
	Region func() ([]byte, error)
	// Responder returns the state of the responder's QP.
	Responder func() (verbs.QPState, error)
	// Ended reports whether the requester's rdma_cm has ended the connection.
	Ended func() bool
}

// Lengths in bytes of the region and of what is written.
const (
	RegionLen = 256
	TextLen   = 16
)

var (
	text    = []byte("sixteen of bytes")
	newText = []byte("and sixteen more")
	strange = []byte("a strange text!!")
)

const (
	strangeAt = 64 // where strange would be
	markAt    = 128
)

// Attack sends packets that a guard of the responder has to drop. It may break the connection.
type Attack struct {
	Name string
	// Run reports whether the guard has failed.
	Run func(*Victim) (through bool, err error)
}

// Attacks are for connections over RoCEv2, each for a connection of its own.
var Attacks = []Attack{
	{"an old WRITE again", replay},
	{"WRITE with a wrong ICRC", wrongICRC},
	{"WRITE from another address", wrongAddress},
	{"WRITE with wrong PSNs", wrongPSN},
	{"WRITE with a wrong key", wrongKey},
}

var errNothing = errors.New("the packet that is needed was not seen")

// write performs a WRITE, which succeeds.
func (v *Victim) write(text []byte, at int) error {
	if status, err := v.Write(text, at); err != nil || status != verbs.WCSuccess {
		return fmt.Errorf("a WRITE: %v, %w", status, err)
	}
	return nil
}

// seen performs a WRITE, which succeeds, and returns its packet.
func (v *Victim) seen() (Seen, wire.Packet, error) {
	if err := v.write(text, 0); err != nil {
		return Seen{}, wire.Packet{}, err
	}
	s, p, ok := v.Path.Last(func(p *wire.Packet) bool { return p.Opcode == wire.RCWriteOnly })
	if !ok {
		return s, p, errNothing
	}
	return s, p, nil
}

// next returns a WRITE after packet p of the requester.
func next(p *wire.Packet) *wire.Packet {
	f := *p
	f.PSN = wire.PSNAdd(p.PSN, 1)
	f.RETH.Addr += strangeAt
	f.Payload = strange
	return &f
}

// patience is the time that a test waits at most.
const patience = 20 * time.Second

// until waits for a condition.
func until(is func() (bool, error)) (bool, error) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if yes, err := is(); yes || err != nil || time.Now().After(end) {
			return yes, err
		}
	}
}

// has reports whether the region has a text.
func (v *Victim) has(text []byte, at int) (bool, error) {
	b, err := v.Region()
	return err == nil && bytes.Equal(b[at:][:len(text)], text), err
}

// replay repeats a WRITE after another one at the same place.
func replay(v *Victim) (bool, error) {
	s, _, err := v.seen()
	if err != nil {
		return false, err
	}
	return v.replayed(s)
}

func (v *Victim) replayed(s Seen) (bool, error) {
	if err := errors.Join(v.write(newText, 0), v.Path.Inject(s), v.write(newText, markAt)); err != nil {
		return false, err
	}
	// When the last WRITE has been executed, so has everything before it.
	if done, err := until(func() (bool, error) { return v.has(newText, markAt) }); err != nil || !done {
		return false, errors.Join(errNothing, err)
	}
	is, err := v.has(newText, 0)
	return !is, err
}

// misses sends packets that must not be executed, and then a WRITE of the requester, after which
// they would have been. All are for the same QP, so that they are executed in this order.
func (v *Victim) misses(frames ...Seen) (bool, error) {
	for _, f := range frames {
		if err := v.Path.Inject(f); err != nil {
			return false, err
		}
	}
	if err := v.write(newText, 0); err != nil {
		return false, fmt.Errorf("after the packets: %w", err)
	}
	return v.has(strange, strangeAt)
}

func wrongICRC(v *Victim) (bool, error) {
	s, p, err := v.seen()
	if err != nil {
		return false, err
	}
	f := s.with(next(&p))
	f.Data[len(f.Data)-1] ^= 1
	return v.misses(f)
}

func wrongAddress(v *Victim) (bool, error) {
	s, p, err := v.seen()
	if err != nil {
		return false, err
	}
	s.Data = bytes.Clone(s.Data)
	s.Data[ipAt+15] ^= 0x10 // the last byte of the source address
	return v.misses(s.with(next(&p)))
}

// wrongPSN sends WRITEs with many PSNs, except the one that is expected.
func wrongPSN(v *Victim) (bool, error) {
	s, p, err := v.seen()
	if err != nil {
		return false, err
	}
	const many = 1 << 12
	var all []Seen
	for i := range uint32(many) {
		f := next(&p)
		f.PSN = wire.PSNAdd(f.PSN, 1+i*(1<<24/many-1))
		all = append(all, s.with(f))
	}
	return v.misses(all...)
}

// wrongKey names a key that does not exist, which ends the connection.
func wrongKey(v *Victim) (bool, error) {
	s, p, err := v.seen()
	if err != nil {
		return false, err
	}
	f := next(&p)
	f.RETH.RKey ^= 0x01010101
	if err := v.Path.Inject(s.with(f)); err != nil {
		return false, err
	}
	ended, err := until(func() (bool, error) {
		state, err := v.Responder()
		return state == verbs.StateErr, err
	})
	if err != nil || !ended {
		return true, err
	}
	return v.has(strange, strangeAt)
}
