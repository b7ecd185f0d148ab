package mad_test

import (
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/mad"
)

// The request that rdma_connect sends to port 7471 of 10.0.0.2.
func Example() {
	ip := mad.IPCM{Src: netip.MustParseAddr("10.0.0.1"), SrcPort: 40000, Dst: netip.MustParseAddr("10.0.0.2")}
	var b [mad.Size]byte
	mad.Encode(&b, 1, &mad.REQ{
		LocalCommID: 0x11, ServiceID: mad.ServiceID(0x0106, 7471), LocalQPN: 0x12, StartingPSN: 99,
		PrivateData: append(ip.Append(nil), "hello"...),
	})

	h, data, err := mad.Parse(b[:])
	if err != nil {
		fmt.Println(err)
		return
	}
	var req mad.REQ
	mad.Decode(data, &req)
	from, err := mad.ParseIPCM(req.PrivateData)
	fmt.Printf("%v of transaction %d: service %#x, QP %#x, PSN %d\n", h.Attr, h.TID, req.ServiceID, req.LocalQPN, req.StartingPSN)
	fmt.Printf("from %v:%d, %q, %v\n", from.Src, from.SrcPort, req.PrivateData[mad.IPCMLen:][:5], err)
	// Output:
	// REQ of transaction 1: service 0x1061d2f, QP 0x12, PSN 99
	// from 10.0.0.1:40000, "hello", <nil>
}
