package rdmatransport_test

import (
	"context"
	"fmt"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Two nodes connect by address and port, with private data both ways, and send a message.
func Example_connect() {
	ctx := context.Background()
	lan := new(pipe.Switch)
	device := func(addr string) *verbs.Device {
		host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
		check(err)
		dev, err := rdmatransport.Open(host, nil)
		check(err)
		return dev
	}
	server, client := device("10.0.0.1/24"), device("10.0.0.2/24")

	buf := make([]byte, 64) // the server's buffer
	l, err := rdmacm.Listen(server, ":7471", &rdmacm.Config{
		PrivateData: []byte("welcome"),
		// The first receive is posted before the peer can send.
		Prepare: func(c *rdmacm.Conn) error {
			mr, err := c.PD().RegMR(buf, verbs.AccessLocalWrite)
			if err != nil {
				return err
			}
			return c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, len(buf))}})
		},
	})
	check(err)
	dialled := make(chan *rdmacm.Conn)
	go func() {
		c, err := rdmacm.Dial(ctx, client, "10.0.0.1:7471", &rdmacm.Config{PrivateData: []byte("it is me")})
		check(err)
		dialled <- c
	}()
	a, err := l.Accept(ctx)
	check(err)
	b := <-dialled
	fmt.Printf("%v: %.8s\n", a.PeerAddr().Addr(), a.Peer().PrivateData)
	fmt.Printf("%v: %.7s\n", b.PeerAddr(), b.Peer().PrivateData)

	mr, err := b.PD().RegMR([]byte("hello, remote queue"), 0)
	check(err)
	check(b.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{mr.SGE(0, mr.Length())}}))
	wc := wait(a.RecvCQ())
	fmt.Println(wc.Status, string(buf[:wc.ByteLen]))

	check(mr.Close())
	check(b.Close())
	<-a.Done()
	fmt.Println(a.QP().State())
	// Output:
	// 10.0.0.2: it is me
	// 10.0.0.1:7471: welcome
	// SUCCESS hello, remote queue
	// ERR
}
