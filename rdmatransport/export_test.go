package rdmatransport

import "github.com/softrnic/softrnic/stack"

// Provider is the type of the provider that Open creates, for tests that wrap it.
type Provider = *provider

// NewProvider creates a provider that the test opens.
func NewProvider(host stack.Network, cfg *Config) (Provider, error) {
	return newProvider(host, cfg)
}
