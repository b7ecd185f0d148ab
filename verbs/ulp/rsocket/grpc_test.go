package rsocket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// echoService is a gRPC service whose calls return their arguments: one message, or each message of
// a stream.
var echoService = grpc.ServiceDesc{
	ServiceName: "Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Once",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			b := new(wrapperspb.BytesValue)
			if err := decode(b); err != nil {
				return nil, err
			}
			if len(b.Value) == 0 {
				return nil, status.Error(codes.InvalidArgument, "nothing")
			}
			return b, nil
		}}},
	Streams: []grpc.StreamDesc{{StreamName: "Each", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				b := new(wrapperspb.BytesValue)
				if err := s.RecvMsg(b); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				if err := s.SendMsg(b); err != nil {
					return err
				}
			}
		}}},
}

// gRPC runs over rsockets, with and without TLS: calls, bidirectional streams, errors, cancelled
// calls, and a graceful shutdown.
func TestGRPC(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
				to, from, at := devices(t, m)
				cfg := &rsocket.Config{Transport: transport}
				l, err := rsocket.Listen(to, netip.AddrPortFrom(at, 0).String(), cfg)
				ok(t, err)
				creds := [2]credentials.TransportCredentials{insecure.NewCredentials(), insecure.NewCredentials()}
				if secure {
					own, peers := tlsConfigs(t)
					creds = [2]credentials.TransportCredentials{credentials.NewTLS(own), credentials.NewTLS(peers)}
				}
				srv := grpc.NewServer(grpc.Creds(creds[0]))
				srv.RegisterService(&echoService, nil)
				served := make(chan error, 1)
				go func() { served <- srv.Serve(l) }()
				dial := func(ctx context.Context, addr string) (net.Conn, error) { return rsocket.Dial(ctx, from, addr, cfg) }
				conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(creds[1]),
					grpc.WithContextDialer(dial))
				ok(t, err)
				t.Cleanup(func() { conn.Close() })
				calls := make(chan error)
				const streams = 8
				for i := range streams {
					go func() { calls <- each(t.Context(), conn, random(1000<<i)) }()
				}
				for range streams {
					if err := <-calls; err != nil {
						t.Error(err)
					}
				}
				data, answer := random(1_000_000), new(wrapperspb.BytesValue)
				ok(t, conn.Invoke(t.Context(), "/Echo/Once", wrapperspb.Bytes(data), answer))
				if !bytes.Equal(answer.Value, data) {
					t.Errorf("%d bytes of %d, or different bytes", len(answer.Value), len(data))
				}
				err = conn.Invoke(t.Context(), "/Echo/Once", new(wrapperspb.BytesValue), answer)
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("an empty call: %v", err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				s, err := conn.NewStream(ctx, &echoService.Streams[0], "/Echo/Each")
				ok(t, err)
				cancel()
				if err := s.RecvMsg(answer); status.Code(err) != codes.Canceled {
					t.Errorf("a cancelled stream: %v", err)
				}
				ok(t, conn.Close())
				srv.GracefulStop()
				ok(t, <-served)
			})
		}
	})
}

// each sends a message five times through an echo stream while it receives the answers.
func each(ctx context.Context, conn *grpc.ClientConn, data []byte) error {
	const times = 5
	s, err := conn.NewStream(ctx, &echoService.Streams[0], "/Echo/Each")
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < times && err == nil; i++ {
			err = s.SendMsg(wrapperspb.Bytes(data))
		}
		sent <- errors.Join(err, s.CloseSend())
	}()
	for n := 0; ; n++ {
		b := new(wrapperspb.BytesValue)
		err := s.RecvMsg(b)
		switch {
		case err == io.EOF && n == times:
			return <-sent
		case err != nil:
			return errors.Join(fmt.Errorf("after %d messages: %w", n, err), <-sent)
		case !bytes.Equal(b.Value, data):
			return fmt.Errorf("message %d: %d bytes of %d, or different bytes", n, len(b.Value), len(data))
		}
	}
}
