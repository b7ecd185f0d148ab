//go:build unix

package rdmatransport_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/attack"
	"github.com/softrnic/softrnic/verbs"
)

// TestAttacks: the guards of SECURITY.md's table hold.
func TestAttacks(t *testing.T) {
	for transport, attacks := range map[verbs.Transport][]attack.Attack{
		verbs.RoCEv2: attack.Attacks, verbs.IWARP: attack.StreamAttacks,
	} {
		for _, a := range attacks {
			t.Run(transport.String()+"/"+a.Name, func(t *testing.T) {
				t.Parallel() // TCP waits at the end of some
				if through, err := a.Run(victim(t, transport)); err != nil || through {
					t.Errorf("through: %v, %v", through, err)
				}
			})
		}
	}
}

// victim connects two hosts through a path on which frames can be added.
func victim(t *testing.T, transport verbs.Transport) *attack.Victim {
	lan := new(pipe.Switch)
	path := attack.NewPath(lan.Port())
	to, from := newStation(t, lan, "10.0.0.1/24"), newStationOn(t, path, "10.0.0.2/24", nil)
	onFrom, onTo := dial(from, to, transport, nil)
	// The test looks at the region while packets arrive. The race detector does not see memory of its
	// own mapping.
	region := must(unix.Mmap(-1, 0, attack.RegionLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	t.Cleanup(func() { ok(t, unix.Munmap(region)) })
	mr := to.reg(region, everyAccess)
	source := from.reg(make([]byte, attack.TextLen), verbs.AccessLocalWrite)
	return &attack.Victim{
		Path: path,
		Write: func(text []byte, at int) (verbs.WCStatus, error) {
			copy(source.Buf(), text)
			err := onFrom.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{source.SGE(0, attack.TextLen)}, RemoteAddr: mr.Addr() + uint64(at), RKey: mr.RKey()})
			var wcs [1]verbs.WC
			if err == nil {
				_, err = onFrom.SendCQ().Wait(within(t), wcs[:])
			}
			return wcs[0].Status, err
		},
		Region:    func() ([]byte, error) { return bytes.Clone(region), nil },
		Responder: func() (verbs.QPState, error) { return onTo.QP().State(), nil },
		Ended: func() bool {
			select {
			case <-onFrom.Done():
				return true
			default:
				return false
			}
		},
	}
}

// TestRandomNumbers: each bit of keys and QP numbers is set in half of them, and differs from that
// of the number before in half of them.
func TestRandomNumbers(t *testing.T) {
	s := newStation(t, new(pipe.Switch), "10.0.0.1/24")
	const many = 2000
	cq := must(s.dev.CreateCQ(1, nil))(t)
	defer cq.Close()
	var keys, qpns []uint32
	for range many {
		keys = append(keys, s.reg(make([]byte, 8), everyAccess).RKey())
		qp := must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq}))(t)
		defer qp.Close()
		qpns = append(qpns, qp.Num())
	}
	for name, numbers := range map[string][]uint32{"key": keys, "QP number": qpns} {
		bits := 31 // the highest tells memory windows from regions
		if name == "QP number" {
			bits = 24
		}
		for bit := range bits {
			var set, changed int
			for i := range numbers {
				set += int(numbers[i] >> bit & 1)
				if i > 0 {
					changed += int((numbers[i] ^ numbers[i-1]) >> bit & 1)
				}
			}
			// The standard deviation is 22.4. Eight of them occur in one of 10^15 tests.
			for _, n := range []int{set, changed} {
				if n < many/2-180 || n > many/2+180 {
					t.Errorf("bit %d of %ss: set in %d of %d, changed in %d", bit, name, set, many, changed)
				}
			}
		}
	}
}
