package verbs_test

import (
	"context"
	"fmt"
	"os"

	"github.com/softrnic/softrnic/verbs"
)

// A file is the memory of a region. A QP sends a part of it to itself, which is received in another
// part. GPUs and remote stores are used in the same way.
func ExampleBackend() {
	const qkey = 0x11111111
	dev, closeAll := openDevice()
	defer closeAll()
	file, err := os.CreateTemp("", "backend")
	fatal(err)
	defer os.Remove(file.Name())
	_, err = file.WriteString("hello")
	fatal(err)

	pd, err := dev.AllocPD()
	fatal(err)
	mr, err := pd.RegMREx(&verbs.MRInitAttr{Backend: file, BackendLength: 4096, Access: verbs.AccessLocalWrite})
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
	gid, err := dev.QueryGID(1, 1)
	fatal(err)
	ah, err := pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: gid.GID, SGIDIndex: 1}})
	fatal(err)

	fatal(qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(1000, 1000)}}))
	fatal(qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{mr.SGE(0, 5)}, AH: ah, RemoteQPN: qp.Num(), RemoteQKey: qkey}))
	var wc [1]verbs.WC
	_, err = cq.Wait(context.Background(), wc[:])
	fatal(err)
	received := make([]byte, 5)
	_, err = file.ReadAt(received, 1000+verbs.GRHLen)
	fatal(err)
	fmt.Printf("%s: %d bytes, the message is %q\n", wc[0].Opcode, wc[0].ByteLen, received)

	fatal(ah.Close())
	fatal(qp.Close())
	fatal(cq.Close())
	fatal(mr.Close())
	fatal(pd.Close())
	// Output: RECV: 45 bytes, the message is "hello"
}
