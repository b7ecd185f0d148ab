// Command softrnic-dra is a driver for Dynamic Resource Allocation, with which claims of pods of
// Kubernetes get RDMA devices. It is a module of its own: Kubernetes' client library is larger than
// all of the command softrnic.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alecthomas/kong"
	kube "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/kubernetes"
)

// flags are those of the command line.
type flags struct {
	kubernetes.Flags
	Node       string           `name:"node" env:"NODE_NAME" required:"" placeholder:"NAME" help:"The name of this node."`
	Kubeconfig string           `type:"existingfile" placeholder:"FILE" help:"How the API server is reached. Default: as a pod does."`
	Kubelet    string           `name:"kubelet-dir" default:"/var/lib/kubelet" type:"existingdir" placeholder:"DIR" help:"The kubelet's directory. Default: /var/lib/kubelet."`
	Version    kong.VersionFlag `help:"Print the version and exit."`
}

const overview = `softrnic-dra is a driver for Dynamic Resource Allocation of Kubernetes: claims for devices of the class softrnic.dev get RDMA
devices. It publishes a ResourceSlice with the devices of this node. Their attributes are rail, link, network, and rateMbps. The flag
--rail is explained by softrnic kubernetes --help.`

func main() {
	var f flags
	kong.Parse(&f, kong.Name("softrnic-dra"), kong.Description(overview), kong.Vars{"version": cli.Version()})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &f); err != nil {
		fmt.Fprintln(os.Stderr, "softrnic-dra:", err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, f *flags) error {
	n, err := f.Flags.Node()
	if err != nil {
		return err
	}
	n.CDIPrefix = "dra-"
	log := f.Logger(&cli.Env{Stderr: os.Stderr})
	klog.SetSlogLogger(log)
	client, err := f.client()
	if err != nil {
		return err
	}
	return serve(ctx, n, kubernetes.NewMonitor(n, log), f.Node, f.Kubelet, client, log)
}

// client returns the connection to the API server.
func (f *flags) client() (kube.Interface, error) {
	cfg, err := rest.InClusterConfig()
	if f.Kubeconfig != "" {
		cfg, err = clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	return kube.NewForConfig(cfg)
}

// serve runs the driver until the context ends, or an error. dir is the kubelet's directory.
func serve(ctx context.Context, n *kubernetes.Node, health monitor, name, dir string, client kube.Interface, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	own := filepath.Join(dir, "plugins", driverName)
	d := &driver{node: n, pool: name, health: health, claims: filepath.Join(own, "claims"), log: log, fail: cancel}
	if err := os.MkdirAll(d.claims, 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(driverName), kubeletplugin.NodeName(name),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(own),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(dir, "plugins_registry")))
	if err != nil {
		return err
	}
	defer helper.Stop()
	watched := make(chan error, 1)
	go func() {
		err := d.health.Run(ctx)
		if err != nil { // without it, no device would become unhealthy
			cancel(fmt.Errorf("health of the devices: %w", err))
		}
		watched <- err
	}()
	defer func() { cancel(nil); <-watched }()
	log.Info("the driver has started", "driver", driverName, "rails", len(n.Rails), "devices", len(n.Rails)*n.Count)
	for {
		problems, changed := d.health.Problems()
		if err := helper.PublishResources(ctx, d.resources(problems)); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}
	}
}
