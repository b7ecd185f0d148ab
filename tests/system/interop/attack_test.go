//go:build linux

package interop

import (
	"context"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/tests/attack"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestAttacks attacks connections from SoftRNIC to rxe and siw, and predicts rxe's numbers. It logs
// what SECURITY.md has beside SoftRNIC's results.
func TestAttacks(t *testing.T) {
	gate.Long(t)
	t.Run("rxe", func(t *testing.T) { testAttacks(t, verbs.RoCEv2, attack.Attacks) })
	t.Run("siw", func(t *testing.T) { testAttacks(t, verbs.IWARP, attack.StreamAttacks) })
}

func testAttacks(t *testing.T, transport verbs.Transport, attacks []attack.Attack) {
	p := cmPeer(t, 2, transport)
	path := attack.NewPath(openTAP(t, p.Netns))
	dev := openSoftRNIC(t, path, nil).(softrnic).dev
	pair := cmPair{cmLab{p, dev, transport}, softrnicAddr4, p.Addr4()}
	linux := pyverbs.OpenCM(t, p, map[verbs.Transport]string{verbs.RoCEv2: "rxe0", verbs.IWARP: "siw0"}[transport])
	for _, a := range attacks {
		t.Run(a.Name, func(t *testing.T) {
			path.Forget()
			packets, through, err := a.Run(kernelVictim(t, pair, linux.In(t), path))
			t.Logf("result: through: %v with %d packets", through, packets)
			// siw places data before it checks MPA's CRC.
			succeeds := a.Succeeds || transport == verbs.IWARP && a.Name == "WRITE without MPA's CRC"
			if err != nil || through != succeeds {
				t.Errorf("through: %v, %v", through, err)
			}
		})
	}
	if transport == verbs.IWARP {
		return
	}
	t.Run("predicted numbers", func(t *testing.T) {
		const many = 200
		pd := linux.In(t).AllocPD()
		var keys, qpns []uint32
		for range many {
			keys = append(keys, pd.RegMR(8, allAccess).RKey())
			qp := pd.CreateQP(verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
			defer qp.Destroy()
			qpns = append(qpns, qp.Num())
		}
		t.Logf("result: of %d numbers, %d keys are predicted with 2^9 tries, and %d QP numbers with 2", many,
			attack.Predicted(keys, 32, 1<<8), attack.Predicted(qpns, 24, 1))
	})
}

// kernelVictim connects a SoftRNIC to the kernel.
func kernelVictim(t *testing.T, p cmPair, linux pyverbs.CM, path *attack.Path) *attack.Victim {
	addr := netip.AddrPortFrom(p.there, 7471)
	l := linux.Listen(addr)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	t.Cleanup(cancel)
	pd := softrnic{t: t, dev: p.dev}.allocPD().(*softrnicDomain)
	dialled := make(chan error, 1)
	var here *rdmacm.Conn
	go func() {
		var err error
		here, err = rdmacm.Dial(ctx, p.dev, addr.String(), &rdmacm.Config{Transport: p.transport, PD: pd.pd, Cap: cmCap})
		dialled <- err
	}()
	there := l.Accept(rdmacm.DefaultConnParam(), cmCap)
	t.Cleanup(there.QP.Destroy)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	closing(t, here.Close)
	region := there.PD.RegMR(attack.RegionLen, allAccess)
	region.Write(attack.SecretAt, attack.Secret)
	source := pd.regMR(len(attack.Text), verbs.AccessLocalWrite)
	source.Write(0, attack.Text)
	return &attack.Victim{
		Path: path,
		Write: func() (verbs.WCStatus, error) {
			err := here.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{source.SGE(0, len(attack.Text))}, RemoteAddr: region.Addr(), RKey: region.RKey()})
			var wcs [1]verbs.WC
			if err == nil {
				_, err = here.SendCQ().Wait(ctx, wcs[:])
			}
			return wcs[0].Status, err
		},
		Region:    func() ([]byte, error) { return region.Read(0, attack.RegionLen), nil },
		Responder: func() (verbs.QPState, error) { return there.QP.State(), nil },
		Ended: func() bool {
			select {
			case <-here.Done():
				return true
			default:
				return false
			}
		},
	}
}
