# SPDX-License-Identifier: Apache-2.0
"""icms for vLLM, named in `--kv-transfer-config`; no file of vLLM is changed.

`icms.vllm.offloading:IcmsOffloadingConnector` is vLLM's own OffloadingConnector, for the secondary tier
`icms.vllm.tier:IcmsTier`; `icms.vllm.connector:IcmsConnector` is a KV connector by itself. Importing
this package imports neither vLLM nor PyTorch; these three modules are imported by vLLM.
"""
