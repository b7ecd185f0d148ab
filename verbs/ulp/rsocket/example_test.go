package rsocket_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// A web server and its client over RDMA. On each side one line differs from TCP: net.Listen, and
// the transport's DialContext. Here the two devices are on a network in memory; real ones are on
// links to other machines.
func Example_http() {
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

	l, err := rsocket.Listen(there, ":80", nil) // net.Listen("tcp", ":80")
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s over RDMA", r.Method, r.URL.Path)
	}))

	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return rsocket.Dial(ctx, here, addr, nil) },
	}}
	answer, err := client.Get("http://10.0.0.1/hello")
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
	// Output: GET /hello over RDMA
}
