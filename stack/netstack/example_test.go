package netstack_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

// Two hosts on one network, and a TCP connection between them. rdmatransport.Open makes an RDMA
// device of a host.
func Example() {
	var lan pipe.Switch
	a, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}, Gateways: []string{"10.0.0.254"}})
	check(err)
	b, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
	check(err)
	fmt.Println("A is", a.NICs()[0].GIDs()[1:], "and B", b.NICs()[0].GIDs()[1:])

	l, err := b.ListenStream(netip.MustParseAddrPort("10.0.0.2:7"))
	check(err)
	go func() {
		c, err := l.Accept()
		check(err)
		_, err = io.Copy(c, c)
		check(err)
		check(c.Close())
	}()
	c, err := a.DialStream(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7"))
	check(err)
	_, err = c.Write([]byte("hello"))
	check(err)
	check(c.CloseWrite())
	echo, err := io.ReadAll(c)
	check(err)
	fmt.Printf("%s\n", echo)

	check(c.Close())
	check(l.Close())
	check(a.Close())
	check(b.Close())
	// Output:
	// A is [10.0.0.1] and B [10.0.0.2 2001:db8::2]
	// hello
}

func ExampleConfig() {
	_, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.0/24"}})
	fmt.Println(err)
	// Output:
	// netstack: Addrs[0] "10.0.0.0/24": 10.0.0.0 is a network or broadcast address: want a host
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
