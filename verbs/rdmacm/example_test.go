package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// openDevice opens a device on a network in memory.
func openDevice(lan *pipe.Switch, addr string) *verbs.Device {
	host, err := netstack.New(lan.Port(), netstack.Addr(addr))
	fatal(err)
	dev, err := rdmatransport.Open(host)
	fatal(err)
	return dev
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A client connects over iWARP and tells the server its name in the private data; the server answers in the same way.
func ExampleDial() {
	ctx := context.Background()
	var lan pipe.Switch
	server, client := openDevice(&lan, "10.0.0.1/24"), openDevice(&lan, "10.0.0.2/24")

	l, err := rdmacm.Listen(server, ":7471", &rdmacm.Config{Transport: verbs.IWARP, PrivateData: []byte("welcome")})
	fatal(err)
	go func() {
		c, err := l.Accept(ctx)
		fatal(err)
		fmt.Printf("%v is %s\n", c.PeerAddr().Addr(), c.Peer().PrivateData)
	}()
	c, err := rdmacm.Dial(ctx, client, "10.0.0.1:7471", &rdmacm.Config{Transport: verbs.IWARP, PrivateData: []byte("Alice")})
	fatal(err)
	fmt.Printf("%v says %s\n", c.PeerAddr(), c.Peer().PrivateData)
	fatal(c.Close())
	fatal(l.Close())
	// Unordered output:
	// 10.0.0.2 is Alice
	// 10.0.0.1:7471 says welcome
}

// The active side by IDs and events, as a program of librdmacm has it.
func ExampleEventChannel() {
	ctx := context.Background()
	var lan pipe.Switch
	server, client := openDevice(&lan, "10.0.0.1/24"), openDevice(&lan, "10.0.0.2/24")
	l, err := rdmacm.Listen(server, ":7471", nil)
	fatal(err)
	accepted := make(chan *rdmacm.Conn)
	go func() {
		c, err := l.Accept(ctx)
		fatal(err)
		accepted <- c
	}()

	ch, err := rdmacm.CreateEventChannel(client)
	fatal(err)
	id, err := ch.CreateID(rdmacm.TCP, nil)
	fatal(err)
	await := func() { // the next event; a program has one loop for those of all its IDs
		e, err := ch.GetEvent(ctx)
		fatal(err)
		fmt.Println(e.Type)
		fatal(e.Ack())
	}
	fatal(id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7471"), 2*time.Second))
	await()
	fatal(id.ResolveRoute())
	await()
	fatal(id.CreateQP(nil, &verbs.QPInitAttr{Type: verbs.RC, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	fatal(id.Connect(rdmacm.Defaults()))
	await()
	c := <-accepted
	fatal(id.Disconnect())
	await()
	fatal(id.Destroy())
	fatal(ch.Destroy())
	fatal(c.Close())
	fatal(l.Close())
	// Output:
	// RDMA_CM_EVENT_ADDR_RESOLVED
	// RDMA_CM_EVENT_ROUTE_RESOLVED
	// RDMA_CM_EVENT_ESTABLISHED
	// RDMA_CM_EVENT_DISCONNECTED
}
