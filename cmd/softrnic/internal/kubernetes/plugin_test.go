package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
)

// patience is how long a test waits for an event that must come.
const patience = 30 * time.Second

// kubelet is the part of a kubelet that device plugins see.
type kubelet struct {
	api.UnimplementedRegistrationServer
	t      *testing.T
	dir    string
	server *grpc.Server
	lists  chan map[string]string // the health of each device, as ListAndWatch sends it
	plugin chan api.DevicePluginClient
}

// startKubelet removes the sockets of plugins, as the kubelet does, and listens.
func startKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	old, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range old {
		_ = os.Remove(name)
	}
	k := &kubelet{t: t, dir: dir, server: grpc.NewServer(), lists: make(chan map[string]string, 64),
		plugin: make(chan api.DevicePluginClient, 8)}
	l, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	api.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(l)
	t.Cleanup(k.server.Stop)
	return k
}

// Register implements api.RegistrationServer.
func (k *kubelet) Register(_ context.Context, req *api.RegisterRequest) (*api.Empty, error) {
	if req.GetVersion() != "v1beta1" || req.GetResourceName() != "softrnic.dev/rnic" ||
		!req.GetOptions().GetGetPreferredAllocationAvailable() {
		return nil, fmt.Errorf("registered as %v", req)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, req.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	k.t.Cleanup(func() { _ = conn.Close() })
	client := api.NewDevicePluginClient(conn)
	stream, err := client.ListAndWatch(k.t.Context(), &api.Empty{})
	if err != nil {
		return nil, err
	}
	k.plugin <- client
	go func() {
		for {
			list, err := stream.Recv()
			if err != nil {
				return
			}
			health := map[string]string{}
			for _, d := range list.GetDevices() {
				health[d.GetID()] = d.GetHealth()
			}
			k.lists <- health
		}
	}()
	return &api.Empty{}, nil
}

// next waits for a value.
func next[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("no %s", what)
	}
	return v
}

// await waits for a list in which a device has the given health.
func (k *kubelet) await(device, health string) map[string]string {
	k.t.Helper()
	for {
		if list := next(k.t, k.lists, device+" that is "+health); list[device] == health {
			return list
		}
	}
}

// machine is a node with what the plugin needs, and a plugin.
type machine struct {
	*Node
	kubelet string // the directory of device plugins
}

func newMachine(t *testing.T, rails ...Rail) machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "k") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := machine{&Node{Rails: rails, Count: 3, CDIDir: filepath.Join(dir, "cdi"), Settings: cdi.Settings{Libraries: filepath.Join(dir, "lib"),
		Command: filepath.Join(dir, "bin", "softrnic")}}, filepath.Join(dir, "kubelet")}
	for _, d := range []string{m.Settings.Libraries, filepath.Dir(m.Settings.Command), m.kubelet} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(m.Settings.Libraries, dropin.Libraries[0]))
	for line := range strings.Lines(dropin.Preload()) {
		write(t, filepath.Join(m.Settings.Libraries, strings.TrimPrefix(strings.TrimSpace(line), dropin.ContainerLibraries)))
	}
	if err := os.WriteFile(filepath.Join(m.Settings.Libraries, dropin.PreloadFile), []byte(dropin.Preload()), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, m.Settings.Command)
	return m
}

func write(t *testing.T, name string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(name), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// run runs a plugin on the machine until the returned function is called.
func (m machine) run(t *testing.T) (stop func()) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	health := NewMonitor(m.Node, log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- health.Run(ctx) }()
	go func() { ended <- (&server{node: m.Node, health: health, dir: m.kubelet, log: log}).run(ctx) }()
	stopped := false
	stop = func() {
		cancel()
		for range 2 {
			if !stopped {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}
		stopped = true
	}
	t.Cleanup(stop)
	return stop
}

func two() []Rail {
	return []Rail{{Name: "a", Spec: dropin.RailSpec{Link: "kernel:net1", Device: "mlx5_0,"}}, {Name: "b", Spec: dropin.RailSpec{Link: "shm"}}}
}

func allocate(c api.DevicePluginClient, ids ...string) (*api.ContainerAllocateResponse, error) {
	resp, err := c.Allocate(context.Background(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	return resp.GetContainerResponses()[0], nil
}

// environment returns the environment of a container with CDI devices of the machine's
// specification.
func (m machine) environment(t *testing.T, devices []*api.CDIDevice) (env []string) {
	t.Helper()
	text, err := os.ReadFile(m.specFile())
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	env = spec.ContainerEdits.Env
	for _, d := range devices {
		i := slices.IndexFunc(spec.Devices, func(s specs.Device) bool { return spec.Kind+"="+s.Name == d.GetName() })
		if i < 0 {
			t.Fatalf("the specification has no %s", d.GetName())
		}
		env = append(env, spec.Devices[i].ContainerEdits.Env...)
	}
	return env
}

// TestAllocate: a container has as many rails as devices, in the order of the node's rails.
func TestAllocate(t *testing.T) {
	for _, withCDI := range []bool{true, false} {
		m := newMachine(t, two()...)
		if !withCDI {
			m.CDIDir = ""
		}
		k := startKubelet(t, m.kubelet)
		m.run(t)
		c := next(t, k.plugin, "registration")
		if list := next(t, k.lists, "list"); len(list) != 6 || list["a-0"] != "Healthy" || list["b-2"] != "Healthy" {
			t.Errorf("listed: %v", list)
		}
		got, err := allocate(c, "b-1", "a-2", "a-0")
		if err != nil {
			t.Fatal(err)
		}
		env := m.envs(got)
		if withCDI {
			if len(got.GetEnvs())+len(got.GetMounts()) > 0 {
				t.Errorf("besides CDI devices: %v", got)
			}
			env = m.environment(t, got.GetCdiDevices())
		}
		cfg, err := dropin.FromEnv(getenv(env))
		if err != nil {
			t.Fatal(err)
		}
		rails := ""
		for _, r := range cfg.Rails {
			rails += fmt.Sprint(r.Flags.Link.Medium, " ", r.RoCE, " ", r.IWARP, "; ")
		}
		if want := "kernel mlx5_0 ; kernel mlx5_1 ; shm softrnic2 softrnic2_iw; "; rails != want {
			t.Errorf("with CDI %v: rails %s, want %s", withCDI, rails, want)
		}
		for _, ids := range [][]string{{"c-0"}, {"a-3"}, {"a--1"}, {"a"}, {""}} {
			if _, err := allocate(c, ids...); err == nil {
				t.Errorf("%v was allocated", ids)
			}
		}
	}
}

// envs returns the environment without CDI.
func (m machine) envs(r *api.ContainerAllocateResponse) (env []string) {
	for name, value := range r.GetEnvs() {
		env = append(env, name+"="+value)
	}
	return env
}

func getenv(env []string) func(string) string {
	return func(name string) string {
		for _, e := range env {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}
}

// TestTooMany: the libraries have at most 8 rails.
func TestTooMany(t *testing.T) {
	m := newMachine(t, DefaultRail)
	m.Count = 9
	k := startKubelet(t, m.kubelet)
	m.run(t)
	c := next(t, k.plugin, "registration")
	var ids []string
	for i := range 9 {
		ids = append(ids, DefaultRail.DeviceName(i))
	}
	if got, err := allocate(c, ids[1:]...); err != nil || len(m.environment(t, got.GetCdiDevices())) < 8 {
		t.Errorf("8 devices: %v, %v", got, err)
	}
	if _, err := allocate(c, ids...); err == nil || !strings.Contains(err.Error(), "at most 8") {
		t.Errorf("9 devices: %v", err)
	}
}

// TestPreferred: the devices of a container are spread over the rails.
func TestPreferred(t *testing.T) {
	m := newMachine(t, two()...)
	k := startKubelet(t, m.kubelet)
	m.run(t)
	c := next(t, k.plugin, "registration")
	for _, test := range []struct {
		free, must []string
		size       int32
		want       string
	}{
		{[]string{"a-0", "a-1", "b-0", "b-1"}, nil, 2, "[a-0 b-0]"},
		{[]string{"a-0", "a-1", "b-0", "b-1"}, []string{"b-1"}, 3, "[b-1 a-0 a-1]"},
		{[]string{"a-0", "a-1"}, nil, 2, "[a-0 a-1]"},
		{[]string{"b-2"}, nil, 2, "[b-2]"},
	} {
		resp, err := c.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
			ContainerRequests: []*api.ContainerPreferredAllocationRequest{
				{AvailableDeviceIDs: test.free, MustIncludeDeviceIDs: test.must, AllocationSize: test.size}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(resp.GetContainerResponses()[0].GetDeviceIDs()); got != test.want {
			t.Errorf("%d of %v with %v: %s, want %s", test.size, test.free, test.must, got, test.want)
		}
	}
}

// TestKubeletRestarts: the plugin registers with each kubelet, also with one that starts later than
// the plugin.
func TestKubeletRestarts(t *testing.T) {
	m := newMachine(t, two()...)
	m.run(t)
	for range 3 {
		k := startKubelet(t, m.kubelet)
		c := next(t, k.plugin, "registration")
		k.await("a-0", "Healthy")
		if _, err := allocate(c, "a-0"); err != nil {
			t.Error(err)
		}
		k.server.Stop()
	}
}

// TestSocketRemoved: the plugin listens and registers again if its socket is removed.
func TestSocketRemoved(t *testing.T) {
	m := newMachine(t, two()...)
	m.run(t)
	k := startKubelet(t, m.kubelet)
	next(t, k.plugin, "registration")
	if err := os.Remove(filepath.Join(m.kubelet, ownSocket)); err != nil {
		t.Fatal(err)
	}
	if _, err := allocate(next(t, k.plugin, "second registration"), "b-0"); err != nil {
		t.Error(err)
	}
}

// TestPluginRestarts: a plugin registers with the kubelet that an earlier one knew, whether that
// has ended or was killed and left its socket. An ended plugin leaves none.
func TestPluginRestarts(t *testing.T) {
	m := newMachine(t, two()...)
	k := startKubelet(t, m.kubelet)
	stop := m.run(t)
	next(t, k.plugin, "registration")
	stop()
	socket := filepath.Join(m.kubelet, ownSocket)
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left")
	}
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	killed.SetUnlinkOnClose(false)
	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}
	m.run(t)
	if _, err := allocate(next(t, k.plugin, "registration of the second plugin"), "b-0"); err != nil {
		t.Error(err)
	}
}

// TestHealth: the devices are unhealthy while something is missing that they need.
func TestHealth(t *testing.T) {
	m := newMachine(t, two()...)
	m.Rails[1].Interface = "no-such-nic"
	k := startKubelet(t, m.kubelet)
	m.run(t)
	if list := next(t, k.lists, "list"); list["a-0"] != "Healthy" || list["b-0"] != "Unhealthy" {
		t.Errorf("at first: %v", list)
	}
	for _, name := range []string{filepath.Join(m.Settings.Libraries, dropin.Libraries[2]), m.Settings.Command} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		k.await("a-1", "Unhealthy")
		write(t, name)
		k.await("a-1", "Healthy")
	}
	if err := os.Rename(m.Settings.Libraries, m.Settings.Libraries+"2"); err != nil {
		t.Fatal(err)
	}
	k.await("a-1", "Unhealthy")
	if err := os.Rename(m.Settings.Libraries+"2", m.Settings.Libraries); err != nil {
		t.Fatal(err)
	}
	if list := k.await("a-1", "Healthy"); list["b-0"] != "Unhealthy" {
		t.Errorf("at the end: %v", list)
	}
}

// TestSpecification: the CDI specification is written again if it is removed, and the devices are
// unhealthy if that is not possible.
func TestSpecification(t *testing.T) {
	m := newMachine(t, DefaultRail)
	k := startKubelet(t, m.kubelet)
	m.run(t)
	c := next(t, k.plugin, "registration")
	k.await("rail0-0", "Healthy")
	if err := os.Remove(m.specFile()); err != nil {
		t.Fatal(err)
	}
	got, err := allocate(c, "rail0-0")
	if err != nil {
		t.Fatal(err)
	}
	m.environment(t, got.GetCdiDevices())
	for os.WriteFile(m.CDIDir, nil, 0o644) != nil { // until the plugin has not made it a directory again
		if err := os.RemoveAll(m.CDIDir); err != nil {
			t.Log(err)
		}
	}
	k.await("rail0-0", "Unhealthy")
}

func TestUp(t *testing.T) {
	for name, want := range map[string]string{"no-such-nic": "interface no-such-nic: "} {
		if err := up(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if want := i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0; (up(i.Name) == nil) != want {
			t.Errorf("%s is up: %v", i.Name, up(i.Name))
		}
	}
}

// TestDeviceNames: whatever the names of the rails' devices are, all devices of a container differ.
func TestDeviceNames(t *testing.T) {
	for _, names := range [][2]string{{"mlx5_0", "mlx5_1"}, {"mlx5_0,mlx5_0_iw", "mlx5_0,mlx5_0_iw"}, {"x", "x"}, {"x_iw", "x,"}} {
		m := newMachine(t, Rail{Name: "a", Spec: dropin.RailSpec{Device: names[0]}}, Rail{Name: "b", Spec: dropin.RailSpec{Device: names[1]}})
		if err := m.validate(); err != nil {
			t.Errorf("%v: %v", names, err)
		}
		for position := range dropin.MaxRails {
			rails := map[int]*Rail{position: &m.Rails[0]}
			for other := range dropin.MaxRails {
				if other != position {
					rails[other] = &m.Rails[1]
				}
			}
			if err := m.Validate(rails); err != nil {
				t.Errorf("%v: the first rail in position %d: %v", names, position, err)
			}
		}
	}
}

// TestAllInterfaces: a container has one device of a rail of all interfaces, and no other.
func TestAllInterfaces(t *testing.T) {
	m := newMachine(t, Rail{Name: "a", Spec: dropin.RailSpec{Link: "kernel:all"}})
	if err := m.validate(); err != nil {
		t.Fatal(err)
	}
	p := &plugin{node: m.Node}
	for ids, want := range map[string]string{"a-1": "", "a-0 a-1": "link=kernel:all is a rail for each interface"} {
		one := &api.ContainerAllocateRequest{DevicesIds: strings.Fields(ids)}
		_, err := p.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{one}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ids, err, want)
		}
	}
}
