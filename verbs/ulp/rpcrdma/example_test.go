package rpcrdma_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// A server of an RPC program with one procedure, and its client. The reply is longer than a SEND:
// the server writes it into the client's memory. Here the two devices are on a network in memory.
func Example() {
	lan := new(pipe.Switch)
	device := func(addr string) *verbs.Device {
		host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
		if err != nil {
			log.Fatal(err)
		}
		dev, err := rdmatransport.Open(host, nil)
		if err != nil {
			log.Fatal(err)
		}
		return dev
	}
	there, here := device("10.0.0.1/24"), device("10.0.0.2/24")

	l, err := rpcrdma.Listen(there, ":20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	go l.Serve(rpcrdma.HandlerFunc(func(_ context.Context, call *rpcrdma.Call) []byte {
		reply := append([]byte(nil), call.Message[:4]...) // XID
		for _, word := range []uint32{1, 0, 0, 0, 0} {    // a reply, accepted, with an empty verifier: success
			reply = binary.BigEndian.AppendUint32(reply, word)
		}
		return append(reply, make([]byte, 100_000)...)
	}))

	client, err := rpcrdma.Dial(context.Background(), here, "10.0.0.1:20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	var call []byte
	for _, word := range []uint32{42, 0, 2, 0x20000000, 1, 1, 0, 0, 0, 0} { // XID 42: procedure 1 of program 0x20000000, version 1
		call = binary.BigEndian.AppendUint32(call, word)
	}
	reply, err := client.Call(context.Background(), call)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, of which RDMA moved %d\n", len(reply), l.Stats().ByWrite)
	// Output: 100024 bytes, of which RDMA moved 100024
}
