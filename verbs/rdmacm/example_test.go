package rdmacm_test

import (
	"context"
	"errors"
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
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
	fatal(err)
	dev, err := rdmatransport.Open(host, nil)
	fatal(err)
	return dev
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A client connects over iWARP and sends its name in the private data. The server answers in the
// same way.
func ExampleDial() {
	ctx := context.Background()
	var lan pipe.Switch
	server, client := openDevice(&lan, "10.0.0.1/24"), openDevice(&lan, "10.0.0.2/24")

	l, err := rdmacm.Listen(server, ":7471", &rdmacm.Config{Transport: verbs.IWARP, PrivateData: []byte("welcome")})
	fatal(err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept(ctx)
		fatal(err)
		fmt.Printf("%v is %s\n", c.PeerAddr().Addr(), c.Peer().PrivateData)
	}()
	c, err := rdmacm.Dial(ctx, client, "10.0.0.1:7471", &rdmacm.Config{Transport: verbs.IWARP, PrivateData: []byte("Alice")})
	fatal(err)
	fmt.Printf("%v says %s\n", c.PeerAddr(), c.Peer().PrivateData)
	<-served
	fatal(c.Close())
	fatal(l.Close())
	// Unordered output:
	// 10.0.0.2 is Alice
	// 10.0.0.1:7471 says welcome
}

// The active side with IDs and events, as in a program that uses librdmacm.
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
	fatal(id.Connect(rdmacm.DefaultConnParam()))
	await()
	c := <-accepted
	fatal(id.Disconnect())
	await()
	fatal(id.Close())
	fatal(ch.Close())
	fatal(c.Close())
	fatal(l.Close())
	// Output:
	// RDMA_CM_EVENT_ADDR_RESOLVED
	// RDMA_CM_EVENT_ROUTE_RESOLVED
	// RDMA_CM_EVENT_ESTABLISHED
	// RDMA_CM_EVENT_DISCONNECTED
}

// OnEvent wakes a program that has its own event loop. The program takes events with TryGetEvent,
// as a librdmacm program polls the channel's descriptor.
func ExampleEventChannel_OnEvent() {
	var lan pipe.Switch
	openDevice(&lan, "10.0.0.1/24")
	ch, err := rdmacm.CreateEventChannel(openDevice(&lan, "10.0.0.2/24"))
	fatal(err)
	wake := make(chan struct{}, 1)
	ch.OnEvent(func(n int) {
		if n > 0 {
			select {
			case wake <- struct{}{}:
			default: // the loop will take this event too
			}
		}
	})
	id, err := ch.CreateID(rdmacm.TCP, nil)
	fatal(err)
	fatal(id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7471"), 10*time.Second))
	for done := false; !done; {
		<-wake // a real program waits for other things here too
		for {
			e, err := ch.TryGetEvent()
			if errors.Is(err, verbs.ErrAgain) {
				break
			}
			fatal(err)
			fmt.Println(e.Type)
			fatal(e.Ack())
			done = true
		}
	}
	fatal(id.Close())
	fatal(ch.Close())
	// Output:
	// RDMA_CM_EVENT_ADDR_RESOLVED
}
