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

// TestAttacks attacks connections. SECURITY.md lists the attacks.
func TestAttacks(t *testing.T) {
	for transport, attacks := range map[verbs.Transport][]attack.Attack{
		verbs.RoCEv2: attack.Attacks, verbs.IWARP: attack.StreamAttacks,
	} {
		for _, a := range attacks {
			t.Run(transport.String()+"/"+a.Name, func(t *testing.T) {
				t.Parallel() // TCP waits at the end of some
				packets, through, err := a.Run(victim(t, transport))
				if err != nil || through != a.Succeeds {
					t.Errorf("through: %v with %d packets, %v", through, packets, err)
				}
			})
		}
	}
}

// victim connects two hosts through an attacker.
func victim(t *testing.T, transport verbs.Transport) *attack.Victim {
	lan := new(pipe.Switch)
	path := attack.NewPath(lan.Port())
	to, from := newStation(t, lan, "10.0.0.1/24"), newStationOn(t, path, "10.0.0.2/24", nil)
	onFrom, onTo := dial(from, to, transport, nil)
	// The test looks at the region while packets arrive. The race detector does not see memory of its
	// own mapping.
	region := must(unix.Mmap(-1, 0, attack.RegionLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	t.Cleanup(func() { ok(t, unix.Munmap(region)) })
	copy(region[attack.SecretAt:], attack.Secret)
	mr := to.reg(region, everyAccess)
	source := from.reg(bytes.Clone(attack.Text), verbs.AccessLocalWrite)
	return &attack.Victim{
		Path: path,
		Write: func() (verbs.WCStatus, error) {
			err := onFrom.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{source.SGE(0, len(attack.Text))}, RemoteAddr: mr.Addr(), RKey: mr.RKey()})
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

// TestPredictedNumbers checks that an attacker does not find a key or a QP number from those that
// it has, although it tries the 2^16 numbers after the last, those before it, and those with the
// same distance as the last two.
func TestPredictedNumbers(t *testing.T) {
	s := newStation(t, new(pipe.Switch), "10.0.0.1/24")
	const many = 1000
	cq := must(s.dev.CreateCQ(1, nil))(t)
	defer cq.Close()
	var keys, qpns []uint32
	for range many {
		keys = append(keys, s.reg(make([]byte, 8), everyAccess).RKey())
		qp := must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq}))(t)
		defer qp.Close()
		qpns = append(qpns, qp.Num())
	}
	// By chance, a key is found with a probability of 2^18 / 2^32, and a QP number with 2^8 / 2^24.
	// More than four, or eight, of 1,000 are found in fewer than one of 10^7 tests.
	if n := attack.Predicted(keys, 32, 1<<16); n > 4 {
		t.Errorf("%d of %d keys are predicted", n, many)
	}
	if n := attack.Predicted(qpns, 24, 1<<6); n > 8 {
		t.Errorf("%d of %d QP numbers are predicted", n, many)
	}
}
