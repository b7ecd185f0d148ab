package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// openDevice opens a device on a network in memory.
func openDevice() (dev *verbs.Device, closeAll func()) {
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	fatal(err)
	dev, err = rdmatransport.Open(host, &rdmatransport.Config{Name: "softrnic0"})
	fatal(err)
	return dev, func() {
		fatal(dev.Close())
		fatal(host.Close())
	}
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A UD QP sends a datagram to itself through an address handle. Package rdmatransport has examples
// of connected QPs.
func Example() {
	const qkey = 0x11111111
	dev, closeAll := openDevice()
	defer closeAll()
	pd, err := dev.AllocPD()
	fatal(err)
	mr, err := pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite)
	fatal(err)
	cq, err := dev.CreateCQ(16, nil)
	fatal(err)
	qp, err := pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.UD, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	fatal(err)
	fatal(qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QKey: qkey},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
	fatal(qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState))
	fatal(qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))

	gid, err := dev.QueryGID(1, 1) // index 0 is the link-local address
	fatal(err)
	ah, err := pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: gid.GID, SGIDIndex: 1}})
	fatal(err)
	fatal(qp.PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{mr.SGE(0, 1024)}}))
	copy(mr.Buf()[2048:], "hello")
	fatal(qp.PostSend(&verbs.SendWR{
		WRID: 2, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(2048, 5)},
		AH: ah, RemoteQPN: qp.Num(), RemoteQKey: qkey,
	}))

	for done := 0; done < 2; {
		var wcs [2]verbs.WC
		n, err := cq.Wait(context.Background(), wcs[:])
		fatal(err)
		for _, wc := range wcs[:n] {
			if done++; wc.Opcode == verbs.WCRecv { // the GRH is before the data
				fmt.Printf("work request %d: %v: %s\n", wc.WRID, wc.Status, mr.Buf()[verbs.GRHLen:wc.ByteLen])
			}
		}
	}
	fatal(ah.Close())
	fatal(qp.Close())
	fatal(cq.Close())
	fatal(mr.Close())
	fatal(pd.Close())
	// Output:
	// work request 1: SUCCESS: hello
}

// Errors name the argument, its value and its bound, and wrap a kind.
func ExampleError() {
	dev, closeAll := openDevice()
	defer closeAll()
	_, err := dev.CreateCQ(-1, nil)
	fmt.Println(err)
	fmt.Println(errors.Is(err, verbs.ErrInvalid))
	// Output:
	// create CQ: cqe -1 is not in 1–4194304
	// true
}

// The name of a device, the state of a port, and its GIDs.
func ExampleDevice_GIDTable() {
	dev, closeAll := openDevice()
	defer closeAll()
	port, err := dev.QueryPort(1)
	fatal(err)
	fmt.Println(dev.Name(), port.State, port.ActiveMTU)
	table, err := dev.GIDTable(1)
	fatal(err)
	for _, g := range table {
		fmt.Println(g.Index, g.GID.Addr(), g.Type)
	}
	// Output:
	// softrnic0 ACTIVE 4096
	// 0 fe80::53:52ff:fe00:1 RoCE v2
	// 1 10.0.0.1 RoCE v2
	// 128 fe80::53:52ff:fe00:1 RoCE v1
	// 129 10.0.0.1 RoCE v1
}
